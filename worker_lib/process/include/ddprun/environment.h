// Environment: who this process is in its job and where the ranks meet, as the launcher (ddprun,
// torchrun, srun, or a person) said it in environment variables. Values: any thread.
//
// Asked in this order: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT as
// torchrun sets them; else, in a step of Slurm, SLURM_PROCID and others (MASTER_ADDR and
// MASTER_PORT, if set, are kept; else the first host of the step and a port made of the job's
// number, 12000 to 31999); else nothing is set, and a process is a world of one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun {

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the workers of this node
  int local_world_size = 1;
  std::string master_addr = {};  // empty in a world of one that was started alone
  std::uint16_t master_port = 0;
  std::string store_file = {};     // where the ranks meet instead, of file:///path
  bool agent_hosts_store = false;  // else rank 0 opens the store at master_addr:master_port
  bool is_slurm_step = false;      // and was not started by a launcher within it
  int restart_count = 0;           // the round: how often the group was started again
  std::string error_file = {};     // where a failure is to be described; empty: nowhere
  int link_fd = -1;       // the link to an agent (ddprun's); whether it is this process' own
  int link_page_fd = -1;  // is found out by who opens it; -1: none
};

// What a program says itself, as arguments of PyTorch's init_process_group().
struct InitMethod {
  // "env://": as the variables say. "tcp://host:port": there, where rank 0 opens the store, whoever
  // MASTER_ADDR is. "file:///path": through a file that all ranks reach and that does not exist
  // before. The latter two may end in "?rank=R&world_size=N".
  std::string url = "env://";
  std::optional<int> rank = {};  // instead of the variables'
  std::optional<int> world_size = {};
};

// Throws UsageError, which names the variables, their values and what to do.
Environment environment_of_this_process(const InitMethod& init_method = {});

}  // namespace ddprun
