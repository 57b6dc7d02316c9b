// Open MPI: each process that mpirun starts is a node, if there is one on each. No variable names the node of rank 0, but
// those of the run-time system tell where mpirun itself runs: it is taken for node 0's place, and the process there, and
// rank 0, check that they are the same. One that is not ends with an error, and with it mpirun ends all others.
#include <algorithm>
#include <string_view>

#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"

namespace ddprun::cli {
namespace {

constexpr const char* kMpirunOnce = "write mpirun -N 1 --bind-to none ddprun ...";

struct MpirunPlace {
  std::string host;
  std::string from;
  bool is_here;
  std::size_t addresses = 1;
};

// Open MPI 4: "<job>.0;tcp://10.0.0.1,10.0.1.1:55257;tcp6://[fd00::2]:47847", the same in both on mpirun's node.
std::optional<MpirunPlace> place_by_uri(const Environment& environment) {
  const auto head = first_of(environment, {"OMPI_MCA_orte_hnp_uri"});
  const auto local = first_of(environment, {"OMPI_MCA_orte_local_daemon_uri"});
  if (!head || !local) return std::nullopt;
  const std::string_view text = head->text;
  for (const std::string_view begin : {";tcp://", ";tcp6://["}) {
    std::size_t at = text.find(begin);
    if (at == std::string_view::npos) continue;
    at += begin.size();
    std::string_view all = text.substr(at, text.find(';', at) - at);
    all = all.substr(0, all.find_last_of(begin.back() == '[' ? ']' : ':'));
    const std::string_view first = all.substr(0, all.find(','));
    if (first.empty()) continue;
    return MpirunPlace{std::string(first), head->name, head->text == local->text,
                       1 + static_cast<std::size_t>(std::ranges::count(all, ','))};
  }
  return std::nullopt;
}

// Open MPI 5: "prterun-<mpirun's host>-<its process id>@1".
std::optional<MpirunPlace> place_by_namespace(const Environment& environment) {
  constexpr std::string_view kBegin = "prterun-";
  const auto name = first_of(environment, {"PMIX_NAMESPACE"});
  const auto host = first_of(environment, {"PMIX_HOSTNAME"});
  if (!name || !host || !name->text.starts_with(kBegin)) return std::nullopt;
  const std::size_t end = name->text.rfind('-');
  if (end <= kBegin.size()) return std::nullopt;
  std::string head = name->text.substr(kBegin.size(), end - kBegin.size());
  const bool is_here = head == host->text;
  return MpirunPlace{std::move(head), name->name, is_here};
}

void read_place(SiteMaker& maker, const Environment& environment, const Variable& rank) {
  auto place = place_by_uri(environment);
  if (!place) place = place_by_namespace(environment);
  if (!place) return maker.refuse_address("mpirun does not say where node 0 is");
  if (place->is_here != (rank.text == "0")) {
    const std::string seen = rank.said() + (place->is_here ? " does" : "");
    return maker.refuse_address("mpirun runs on " + place->host + " (" + place->from +
                                "), and rank 0 of its processes does not (" + seen +
                                "), so it is not known where node 0 is");
  }
  maker.propose(
      OptionId::kMasterAddr, place->host,
      (place->addresses > 1 ? "the first address in " : "") + place->from + ", mpirun's node");
}

}  // namespace

std::optional<Site> open_mpi_site(const Environment& environment, const std::string& /*root*/) {
  const auto rank = first_of(environment, {"OMPI_COMM_WORLD_RANK"});
  if (!rank) return std::nullopt;
  SiteMaker maker(environment, "Open MPI", kMpirunOnce);
  maker.read_processes("mpirun", {"OMPI_COMM_WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE"});
  read_place(maker, environment, *rank);
  if (const auto bound = maker.first_of({"OMPI_MCA_orte_bound_at_launch"})) {
    maker.warn(
        "mpirun has bound this ddprun to a part of the CPUs (" + bound->said() +
        "), by default to one core, and with it all its workers; --bind-to none gives them all");
  }
  maker.propose_run_id({"PMIX_NAMESPACE"});
  return maker.take();
}

}  // namespace ddprun::cli
