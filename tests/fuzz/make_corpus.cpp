// Writes the recorded transcripts as the fuzzers' first inputs: make_corpus DIRECTORY makes
// DIRECTORY/store_core and DIRECTORY/store_decoder.
#include <filesystem>
#include <fstream>

#include "tests/fuzz/store_fuzz.h"
#include "tests/unit/rendezvous/golden.h"

using namespace ddprun::rdzv::testing;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path root = argv[1];
  std::filesystem::create_directories(root / "store_core");
  std::filesystem::create_directories(root / "store_decoder");
  for (const auto& transcript : load_golden()) {
    std::string script, stream(1, '\7');
    if (transcript.starts_validated) stream += kHandshake;
    for (const auto& request : transcript.setup) {
      append_step(script, 3, request);
      stream += request;
    }
    for (const auto& step : transcript.steps) {
      const auto client = static_cast<unsigned>(step.connection - 'A') % kFuzzClients;
      append_step(script, client, step.sent);
      if (step.client_closes) append_leave(script, client);
      stream += step.sent;
    }
    std::ofstream(root / "store_core" / transcript.name) << script;
    std::ofstream(root / "store_decoder" / transcript.name) << stream;
  }
}
