// Writes the fuzzers' first inputs: make_corpus DIRECTORY makes DIRECTORY/store_core and
// DIRECTORY/store_decoder of the recorded transcripts, and DIRECTORY/round_wire of one frame of each
// kind.
#include <filesystem>
#include <fstream>

#include "tests/fuzz/store_fuzz.h"
#include "tests/unit/rendezvous/golden.h"
#include "tests/unit/rendezvous/round_frames.h"

using namespace ddprun::rdzv;
using namespace ddprun::rdzv::testing;

namespace {

void write_store_corpus(const std::filesystem::path& root) {
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

// Each frame as bytes of a connection, as a payload alone, and all of them in a row.
void write_round_corpus(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const std::string cut(1, '\7');
  std::string all = cut;
  int number = 0;
  const auto write = [&](const auto& frame) {
    constexpr std::size_t kLengthBytes = 4;
    const std::string bytes = wire::encode(frame);
    all += bytes;
    const std::string name = std::to_string(++number);
    std::ofstream(folder / (name + ".frame")) << cut << bytes;
    std::ofstream(folder / (name + ".payload")) << cut << bytes.substr(kLengthBytes);
  };
  for (const auto& frame : example_agent_frames()) write(frame);
  for (const auto& frame : example_leader_frames()) write(frame);
  std::ofstream(folder / "all") << all;
  std::ofstream(folder / "opening") << cut << wire::encode(wire::Opening{});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path root = argv[1];
  write_store_corpus(root);
  write_round_corpus(root / "round_wire");
}
