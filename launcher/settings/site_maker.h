// What the functions of sites have in common: they read variables and put values, or why these are not known, into a
// Site. And the hosts that a batch system has given to the job, for launchers that do not tell where node 0 is.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/settings/settings.h"

namespace ddprun::cli {

struct Variable {
  std::string name;
  std::string text;

  std::string said() const { return name + "=" + text; }
};

struct Count {
  int number;
  Variable from;
};

using VariableNames = std::initializer_list<std::string_view>;

// The variable that is set first of these; one that is empty counts as not set.
std::optional<Variable> first_of(const Environment& environment, VariableNames names);

// PBS' file, or LSF's or Slurm's variable.
struct Allocation {
  std::string from;                // "PBS_NODEFILE"
  std::vector<std::string> hosts;  // each once, in the order of the list
  std::vector<int> slots;          // how many each host has, where the list has them
  std::string why_unknown;         // then there are no hosts
  bool may_be_elsewhere = false;   // on another node the list can be read
};
std::optional<Allocation> find_allocation(const Environment& environment, const std::string& root);

class SiteMaker {
 public:
  // `launch` is how ddprun should be started here, "write srun ... ddprun ..."; empty where it starts by itself.
  SiteMaker(const Environment& environment, std::string name, std::string launch);

  std::optional<Variable> first_of(VariableNames names) const {
    return cli::first_of(environment_, names);
  }
  // Nothing: not set, or not a whole number of at least `least`, and then the option is refused.
  std::optional<Count> count(OptionId id, VariableNames names, int least);

  void set(OptionId id, std::string text, std::string from);
  void propose(OptionId id, std::string text, std::string from);
  void refuse(OptionId id, std::string sentence);
  void refuse_address(const std::string& why);  // the first part of a sentence
  bool is_refused(OptionId id) const;
  void warn(std::string sentence) { site_.warnings.push_back(std::move(sentence)); }
  std::string contradiction(const Variable& one, const Variable& other,
                            const std::string& why) const;

  // The number of nodes and the rank of this one. The first names are told if none is set.
  std::optional<Count> read_nodes(VariableNames counts, VariableNames ranks);
  void read_node_rank(const Count& nodes, VariableNames ranks);
  // `launcher` has started a process for each rank: that is a node, if there is one on each.
  std::optional<Count> read_processes(const std::string& launcher, VariableNames counts,
                                      VariableNames ranks, VariableNames counts_here);
  void refuse_too_many(const std::string& launcher, const Count& processes, const Variable& by,
                       const std::string& where);
  // Node 0's name or address: the variable's first word.
  void read_address(VariableNames addresses);
  // The name of the job, which all its nodes have, if the site says one.
  void propose_run_id(VariableNames names);
  // One worker for each GPU, if the site says how many there are.
  void propose_gpus(VariableNames counts);
  // Node 0 is the first host of the allocation, if all its hosts are nodes of the job.
  void propose_first_host(const std::string& launcher, const std::optional<Allocation>& allocation,
                          const Count& nodes);
  // ddprun was started by a batch script or in a shell: nothing says which node this is.
  void read_shell(const std::optional<Allocation>& allocation);

  Site take() { return std::move(site_); }

 protected:
  const Environment& environment_;
  const std::string launch_;
  Site site_;
};

}  // namespace ddprun::cli
