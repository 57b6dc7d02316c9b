// The recorded transcripts of PyTorch's servers (data/tcpstore_golden.json), with the places
// changed where our store rightly answers otherwise: golden.cpp lists them one by one.
#pragma once

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::rdzv::testing {

struct GoldenStep {
  char connection = 'A';
  std::string sent;
  std::string expected;
  bool closes = false;         // the server ends the connection after `expected`
  bool shuts_down = false;     // the client ends its sending side after `sent`
  bool client_closes = false;  // the client closes the connection
};

struct GoldenTranscript {
  std::string name;
  bool starts_validated = true;
  std::vector<std::string> setup;
  std::vector<GoldenStep> steps;
};

std::ostream& operator<<(std::ostream& out, const GoldenTranscript& transcript);

std::vector<GoldenTranscript> load_golden();

std::string to_hex(std::string_view bytes);

inline constexpr std::string_view kHandshake("\x00\xce\xf7\x85\x3c", 5);

}  // namespace ddprun::rdzv::testing
