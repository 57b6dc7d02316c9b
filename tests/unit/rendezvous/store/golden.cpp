#include "tests/unit/rendezvous/store/golden.h"

#include <boost/json.hpp>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <stdexcept>

namespace ddprun::rdzv::testing {
namespace {

namespace json = boost::json;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

bool flag(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->as_bool();
}

std::string hex_field(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr ? "" : from_hex(value->as_string());
}

GoldenTranscript parse(const json::object& object) {
  GoldenTranscript transcript;
  transcript.name = object.at("name").as_string();
  transcript.starts_validated = !flag(object, "handshake_included");
  for (const auto& request : object.at("setup").as_array()) {
    transcript.setup.push_back(from_hex(request.as_string()));
  }
  for (const auto& value : object.at("steps").as_array()) {
    const json::object& step = value.as_object();
    transcript.steps.push_back({step.at("conn").as_string().front(), hex_field(step, "c2s"),
                                hex_field(step, "s2c"), flag(step, "closed"),
                                flag(step, "shutdown"), flag(step, "client_closes")});
  }
  return transcript;
}

// What one backend does and we do not, because the other backend's way (recorded too) is ours, or
// because a later PyTorch serves the request.
const std::set<std::string> kNotOurs = {
    "get_missing_legacy",        // closes the connection
    "multi_get_missing_legacy",  // closes the connection
    "queue_on_legacy",           // has no queues
    "key_8193_legacy",           // has no limits
    // PyTorch has one count for both WAITs, so that any of the keys ends it. Undefined use: ours
    // forgets the first WAIT (StoreCore.SecondWaitReplacesTheFirst).
    "second_wait_replaces_the_first",
};

// PyTorch's bugs: the transcript with the answer that is right.
const std::map<std::string, std::function<void(std::vector<GoldenStep>&)>> kCorrections = {
    {"barrier_query_18",
     [](auto& steps) {
       steps[0].expected = std::string(1, '\0');
       steps[0].closes = false;
     }},
    {"wait_not_released_by_compare_set_on_legacy",
     [](auto& steps) { steps[2].expected = std::string(1, '\0'); }},
    {"queue_lost_wakeup", [](auto& steps) { steps[5].expected = std::string(1, '\0'); }},
    {"queue_stale_waiter_spurious_release", [](auto& steps) { steps[6].expected = ""; }},
    {"wait_nonempty_queue_and_absent_key",
     [](auto& steps) { steps[3].expected = std::string(1, '\0'); }},
    {"compare_set_absent_releases_waiter", [](auto& steps) { steps[2].expected = ""; }},
    {"bad_magic_libuv", [](auto& steps) { steps[0].closes = true; }},
    {"no_validate_libuv",
     [](auto& steps) {
       steps[0].closes = true;
       steps.resize(1);
     }},
    {"split_validate_libuv", [](auto& steps) { steps[1].closes = false; }},
    {"http_request_libuv", [](auto& steps) { steps[0].closes = true; }},
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const GoldenTranscript& transcript) {
  return out << transcript.name;
}

std::vector<GoldenTranscript> load_golden() {
  std::ifstream file(DDPRUN_GOLDEN_FILE);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " DDPRUN_GOLDEN_FILE);
  const json::value document = json::parse(text.str());
  std::vector<GoldenTranscript> transcripts;
  for (const auto& value : document.at("transcripts").as_array()) {
    GoldenTranscript transcript = parse(value.as_object());
    if (kNotOurs.contains(transcript.name)) continue;
    const auto correction = kCorrections.find(transcript.name);
    if (correction != kCorrections.end()) correction->second(transcript.steps);
    transcripts.push_back(std::move(transcript));
  }
  return transcripts;
}

std::string to_hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    hex.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return hex;
}

}  // namespace ddprun::rdzv::testing
