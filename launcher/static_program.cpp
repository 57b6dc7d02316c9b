// ddprun: nothing that the others have.
#include "launcher/other_program.h"

namespace ddprun::cli {

bool has(Part) { return false; }

}  // namespace ddprun::cli
