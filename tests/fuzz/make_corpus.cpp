// Writes the fuzzers' first inputs: make_corpus DIRECTORY makes DIRECTORY/store_core and
// DIRECTORY/store_decoder of the recorded transcripts, DIRECTORY/round_wire of one frame of each
// kind, and DIRECTORY/etcd_messages of what etcd answers and keeps.
#include <filesystem>
#include <fstream>

#include "rendezvous/etcd/job_record.h"
#include "tests/fuzz/store_fuzz.h"
#include "tests/unit/rendezvous/round/round_frames.h"
#include "tests/unit/rendezvous/store/golden.h"

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

void write_etcd_corpus(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  JobRecord record;
  record.incarnation = "3f-1";
  record.round = ddprun::Round{4};
  std::ofstream(folder / "record") << to_text(record);
  record.outcome.emplace();
  std::ofstream(folder / "ended") << to_text(record);
  std::ofstream(folder / "leader") << to_text(LeaderKey{"3f-2", "3f-1", "h:1", 1});
  std::ofstream(folder / "txn")
      << R"({"header":{"revision":"9"},"succeeded":true,"responses":[{"response_range":{"kvs":[)"
         R"({"key":"YQ==","create_revision":"2","mod_revision":"3","value":"Yg==","lease":"5"}]}},)"
         R"({"response_range":{}}]})";
  std::ofstream(folder / "lease") << R"({"result":{"ID":"12345","TTL":"2"}})";
  std::ofstream(folder / "watch")
      << R"({"result":{"header":{"revision":"3"},"events":[{"kv":{"key":"YQ=="}},)"
         R"({"type":"DELETE","kv":{"key":"YQ==","mod_revision":"3"}}]}})";
  std::ofstream(folder / "refusal") << R"({"error":"x","message":"no space","code":8})";
  std::ofstream(folder / "token") << R"({"token":"abc.9"})";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path root = argv[1];
  write_store_corpus(root);
  write_round_corpus(root / "round_wire");
  write_etcd_corpus(root / "etcd_messages");
}
