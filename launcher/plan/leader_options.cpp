#include "launcher/plan/leader_options.h"

#include <utility>

#include "launcher/plan/rdzv_conf.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/limits.h"

namespace ddprun::cli {

Result<rdzv::LeaderJob> read_leader_job(const std::string& listen, const Settings& settings,
                                        bool is_in_slurm_job, std::vector<std::string>& warnings) {
  Taking take;
  rdzv::LeaderJob job;
  job.listen = take(rdzv::parse_endpoint(listen).map_error([&](const Error& error) {
    return Error{ErrorCode::kInvalidArgument, "--listen=" + listen + ": " + error.to_string(), {}};
  }));
  const ResolvedOption nnodes = resolved(settings, OptionId::kNnodes);
  const NodeCount nodes = take(read_node_count(nnodes));
  if (take.error) return fail(*std::move(take.error));
  if (nodes.most == 1) {
    return refused(nnodes, "one node leads itself; give the number of nodes, or MIN:MAX");
  }
  job.round.min_nodes = nodes.least;
  job.round.max_nodes = nodes.most;

  const ResolvedOption run_id = resolved(settings, OptionId::kRdzvId);
  if (run_id.text().empty() || run_id.text().size() > rdzv::limits::kMaxNameBytes) {
    return fail(ErrorCode::kInvalidArgument,
                run_id.setting.origin.name + ": give the nodes' --rdzv-id, of 1 to " +
                    std::to_string(rdzv::limits::kMaxNameBytes) + " bytes");
  }
  job.round.run_id = run_id.text();
  job.round.restarts = take(read_restart_rules(settings));
  if (take.error) return fail(*std::move(take.error));  // before there are warnings

  const RdzvConf conf = take(read_conf(resolved(settings, OptionId::kRdzvConf), warnings));
  job.keep_alive = keep_alive_of(conf);
  job.round.reconnect_grace = job.keep_alive.reconnect_grace;
  job.round.silence_limit = job.keep_alive.timeout();
  job.round.join_timeout = seconds_of(conf, "join_timeout").value_or(job.round.join_timeout);
  job.round.last_call_timeout =
      seconds_of(conf, "last_call_timeout").value_or(job.round.last_call_timeout);
  job.round.replace_timeout =
      seconds_of(conf, "replace_timeout").value_or(job.round.replace_timeout);
  job.round.own_node.reset();
  std::vector<std::string> notes;
  job.proof = take(read_proof(settings, conf, is_in_slurm_job, rdzv::kMungeLibrary, notes));
  if (take.error) return fail(*std::move(take.error));
  return job;
}

}  // namespace ddprun::cli
