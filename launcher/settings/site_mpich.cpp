// MPICH, Intel MPI, MVAPICH: what their process manager, Hydra, sets. PMI_RANK alone may be by srun, flux or PALS.
#include "launcher/settings/settings.h"
#include "launcher/settings/site_maker.h"

namespace ddprun::cli {

std::optional<Site> mpich_site(const Environment& environment, const std::string& root) {
  if (!first_of(environment, {"PMI_RANK"}) || !first_of(environment, {"MPI_LOCALRANKID"})) {
    return std::nullopt;
  }
  SiteMaker maker(environment, "MPICH", "write mpiexec -ppn 1 ddprun ...");
  const auto nodes =
      maker.read_processes("mpiexec", {"PMI_SIZE"}, {"PMI_RANK"}, {"MPI_LOCALNRANKS"});
  if (nodes) maker.propose_first_host("mpiexec", find_allocation(environment, root), *nodes);
  return maker.take();
}

}  // namespace ddprun::cli
