// PBS: what HPE's launcher PALS sets (mpiexec and aprun of Cray's systems), and what a batch script or interactive shell
// has. PALS' variables outside of PBS are by srun or flux, which set them for Cray's MPI.
#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"

namespace ddprun::cli {
namespace {

constexpr const char* kMpiexecOnce = "write mpiexec --ppn 1 --cpu-bind none ddprun ...";

SiteMaker in_pbs(const Environment& environment, const Variable& job) {
  SiteMaker maker(environment, "PBS", kMpiexecOnce);
  maker.propose(OptionId::kRdzvId, job.text, job.name);
  return maker;
}

}  // namespace

std::optional<Site> pals_site(const Environment& environment, const std::string& root) {
  const auto job = first_of(environment, {"PBS_JOBID"});
  if (!job || !first_of(environment, {"PALS_RANKID"})) return std::nullopt;
  SiteMaker maker = in_pbs(environment, *job);
  const auto nodes = maker.read_processes("mpiexec", {"PMI_SIZE"}, {"PALS_RANKID"},
                                          {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"});
  if (nodes) maker.propose_first_host("mpiexec", find_allocation(environment, root), *nodes);
  return maker.take();
}

std::optional<Site> pbs_shell_site(const Environment& environment, const std::string& root) {
  const auto job = first_of(environment, {"PBS_JOBID"});
  if (!job) return std::nullopt;
  SiteMaker maker = in_pbs(environment, *job);
  maker.read_shell(find_allocation(environment, root));
  return maker.take();
}

}  // namespace ddprun::cli
