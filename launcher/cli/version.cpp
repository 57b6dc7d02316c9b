#include "launcher/cli/version.h"

#include "launcher_commit.h"  // made by commit.cmake: kCommit
#include "rendezvous/round/round_wire.h"

namespace ddprun::cli {

std::string_view version() { return DDPRUN_VERSION; }

std::string version_text(std::string_view program) {
  std::string text(program);
  text += " " DDPRUN_VERSION " (";
  if (!kCommit.empty()) text += "commit " + std::string(kCommit) + ", ";
  return text + "round protocol " + std::to_string(rdzv::wire::kRoundProtocolVersion) + ")\n";
}

}  // namespace ddprun::cli
