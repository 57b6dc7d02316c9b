// Kubernetes: the pods of an Indexed Job, alone or in a JobSet, are the nodes of a job. Kubernetes
// sets JOB_COMPLETION_INDEX and HOSTNAME (<job>-<index>) in every pod; the names of a JobSet reach
// the pod only if the manifest passes them on (downward API). No pod is told how many pods there
// are: without --nnodes each is a job of its own, as in a sweep over parameters, unless something
// says that they belong together, such as a headless service, by which they could meet.
//
// The pods of a LeaderWorkerSet know more: the controller sets the size of their group, each one's index and the leader's
// address.
//
// Other pods (a shell, a notebook, a PyTorchJob, which sets everything by PET_*) are no site.
#include <fcntl.h>

#include <algorithm>
#include <string_view>

#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {
namespace {

constexpr const char* kIndex = "JOB_COMPLETION_INDEX";

// Kubernetes kills a pod 30 s after SIGTERM, unless its manifest says otherwise. Before that there
// must be time for the stacks and the report of workers that had to be killed.
constexpr const char* kSecondsOfPod = "20";
constexpr const char* kFromGracePeriod = "terminationGracePeriodSeconds, usually 30";

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

// The subdomain of this pod's name, beginning with a dot: ".<service>.<namespace>.svc.<cluster>", or "". It is in HOSTNAME
// with setHostnameAsFQDN; else the kubelet writes the whole name into /etc/hosts, before the host name.
std::string subdomain_of(const std::string& host, const std::string& index,
                         const std::string& root) {
  constexpr std::size_t kHostsMax = 1 << 20;
  const std::size_t dot = std::min(host.find('.'), host.size());
  if (!host.substr(0, dot).ends_with("-" + index)) return "";  // a machine's name: host network
  if (dot < host.size()) return host.substr(dot);
  const rdzv::UniqueFd file(::open((root + "/etc/hosts").c_str(), O_RDONLY | O_CLOEXEC));
  const std::string hosts = read_from(file.get(), kHostsMax).value_or("");
  // Each name stands behind a blank; other names of this host have no ".svc.".
  for (std::size_t at = hosts.find(host + "."); at != std::string::npos;
       at = hosts.find(host + ".", at + 1)) {
    const bool is_whole = at > 0 && (hosts[at - 1] == '\t' || hosts[at - 1] == ' ');
    const std::size_t begin = at + host.size();
    std::string subdomain = hosts.substr(begin, hosts.find_first_of(" \t\r\n", begin) - begin);
    if (is_whole && subdomain.find(".svc.") != std::string::npos) return subdomain;
  }
  return "";
}

// What says that the pods are the nodes of one job; empty: nothing.
std::string together_by(const Environment& environment, const std::string& index,
                        const std::string& root) {
  if (!value_or_empty(environment, "JOBSET_NAME").empty()) return "JOBSET_NAME";
  const std::string subdomain = subdomain_of(value_or_empty(environment, "HOSTNAME"), index, root);
  if (subdomain.empty()) return "";
  return "the pods' subdomain " + subdomain.substr(1, subdomain.find('.', 1) - 1);
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

std::optional<Site> kubernetes_site(const Environment& environment, const std::string& root) {
  const std::string index = value_or_empty(environment, kIndex);
  if (index.empty()) return std::nullopt;
  Site site;
  site.name = "Kubernetes";
  site.values.emplace(OptionId::kNodeRank, node_rank(index));
  site.values.emplace(OptionId::kMasterAddr, first_pod(environment, index));
  site.values.emplace(OptionId::kShutdownTimeout,
                      SiteValue{kSecondsOfPod, kFromGracePeriod, /*is_proposal=*/true});
  // So that pods of the attempt before, which may not have ended yet, cannot join.
  if (const std::string set = value_or_empty(environment, "JOBSET_NAME"); !set.empty()) {
    const std::string attempt = value_or_empty(environment, "JOBSET_RESTART_ATTEMPT");
    site.values.emplace(
        OptionId::kRdzvId,
        SiteValue{attempt.empty() ? set : set + "-" + attempt,
                  attempt.empty() ? "JOBSET_NAME" : "JOBSET_NAME and JOBSET_RESTART_ATTEMPT",
                  /*is_proposal=*/true});
  }
  site.uncounted = {
      std::string(kIndex) + "=" + index + ", but Kubernetes does not say how many pods there are",
      together_by(environment, index, root)};
  return site;
}

std::optional<Site> leader_worker_set_site(const Environment& environment,
                                           const std::string& /*root*/) {
  if (!first_of(environment, {"LWS_LEADER_ADDRESS"})) return std::nullopt;
  SiteMaker maker(environment, "LeaderWorkerSet", "");
  maker.read_nodes({"LWS_GROUP_SIZE"}, {"LWS_WORKER_INDEX"});
  maker.read_address({"LWS_LEADER_ADDRESS"});
  maker.propose(OptionId::kShutdownTimeout, kSecondsOfPod, kFromGracePeriod);
  return maker.take();
}

// The second is set in every pod.
bool is_pod(const Environment& environment) {
  return !value_or_empty(environment, kIndex).empty() ||
         environment.contains("KUBERNETES_SERVICE_HOST");
}

}  // namespace ddprun::cli
