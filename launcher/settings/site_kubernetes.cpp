// Kubernetes: the pods of an Indexed Job, alone or in a JobSet, are the nodes of a job. Kubernetes
// sets JOB_COMPLETION_INDEX and HOSTNAME (<job>-<index>) in every pod; the names of a JobSet reach
// the pod only if the manifest passes them on (downward API). No pod is told how many pods there
// are: without --nnodes each is a job of its own, as in a sweep over parameters.
//
// Other pods (a shell, a notebook, a PyTorchJob, which sets everything by PET_*) are no site.
#include <string_view>

#include "launcher/settings/settings.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun::cli {
namespace {

constexpr const char* kIndex = "JOB_COMPLETION_INDEX";

// Kubernetes kills a pod 30 s after SIGTERM, unless its manifest says otherwise. Before that there
// must be time for the stacks and the report of workers that had to be killed.
constexpr const char* kSecondsOfPod = "20";

bool is_index(std::string_view text) {
  const auto index = parse_number<unsigned>(text);
  return index && std::to_string(*index) == text;
}

Result<SiteValue> node_rank(const std::string& index) {
  if (is_index(index)) return SiteValue{index, kIndex};
  return fail(ErrorCode::kInvalidArgument,
              std::string(kIndex) + "=" + index +
                  ": it should be the number of this pod, as an Indexed Job sets it; leave it out, "
                  "or say --node-rank");
}

// The name of the pod with index 0: <job>-0.<subdomain>. The subdomain is the name of a headless
// service: a JobSet makes one with its own name, for an Indexed Job the user makes one with the
// Job's name.
Result<SiteValue> first_pod(const Environment& environment, const std::string& index) {
  const std::string host = value_or_empty(environment, "HOSTNAME");
  const std::string label = host.substr(0, host.find('.'));
  const std::string suffix = "-" + index;
  if (!label.ends_with(suffix) || label.size() == suffix.size()) {
    return fail(ErrorCode::kInvalidArgument,
                "HOSTNAME=" + host + " is not <job>" + suffix + ", which pod " + index +
                    " of an Indexed Job is called, so the name of pod 0 is not known; say "
                    "--master-addr, or --rdzv-endpoint with c10d");
  }
  const std::string job = label.substr(0, label.size() - suffix.size());
  const std::string set = value_or_empty(environment, "JOBSET_NAME");
  // With setHostnameAsFQDN the host name has the subdomain.
  const bool has_subdomain = label.size() < host.size();
  const bool is_in_set = !has_subdomain && !set.empty();
  return SiteValue{
      job + "-0" + (has_subdomain ? host.substr(label.size()) : "." + (is_in_set ? set : job)),
      is_in_set ? "HOSTNAME and JOBSET_NAME" : "HOSTNAME", /*is_proposal=*/true};
}

}  // namespace

std::optional<Site> kubernetes_site(const Environment& environment) {
  const auto found = environment.find(kIndex);
  if (found == environment.end()) return std::nullopt;
  const std::string& index = found->second;
  Site site;
  site.name = "Kubernetes";
  site.values.emplace(OptionId::kNodeRank, node_rank(index));
  site.values.emplace(OptionId::kMasterAddr, first_pod(environment, index));
  site.values.emplace(OptionId::kShutdownTimeout,
                      SiteValue{kSecondsOfPod, "terminationGracePeriodSeconds, usually 30",
                                /*is_proposal=*/true});
  // So that pods of the attempt before, which may not have ended yet, cannot join.
  if (const std::string set = value_or_empty(environment, "JOBSET_NAME"); !set.empty()) {
    const std::string attempt = value_or_empty(environment, "JOBSET_RESTART_ATTEMPT");
    site.values.emplace(
        OptionId::kRdzvId,
        SiteValue{attempt.empty() ? set : set + "-" + attempt,
                  attempt.empty() ? "JOBSET_NAME" : "JOBSET_NAME and JOBSET_RESTART_ATTEMPT",
                  /*is_proposal=*/true});
  }
  site.warnings.push_back(std::string(kIndex) + "=" + index +
                          ", but no pod is told how many there are: this one is a job of its own; "
                          "--nnodes (or PET_NNODES) makes them one, --nnodes=1 silences this");
  return site;
}

// The second is set in every pod.
bool is_pod(const Environment& environment) {
  return environment.contains(kIndex) || environment.contains("KUBERNETES_SERVICE_HOST");
}

}  // namespace ddprun::cli
