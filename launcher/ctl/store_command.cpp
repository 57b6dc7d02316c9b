// ddpctl store: a client of any c10d TCPStore (ddprun's, torchrun's, or one that a program opened),
// or a server.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/ctl/ddpctl.h"
#include "rendezvous/common/descriptor_limit.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/store_client/store_client.h"

namespace ddprun::cli {
namespace {

using cli::report;  // beside the one for stores
using rdzv::StoreClient;
using rdzv::StoreServer;

// One for each kind of failure, so that a script need not parse the message.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNoStore = 4,
  kTimedOut = 5,
  kNoSuchKey = 6,
  kRefused = 7,
  kCannotListen = 8,
};

int report(const Error& error) {
  constexpr std::pair<ErrorCode, ExitCode> kCodes[] = {{ErrorCode::kUnavailable, kUnreachable},
                                                       {ErrorCode::kProtocol, kNoStore},
                                                       {ErrorCode::kTimeout, kTimedOut},
                                                       {ErrorCode::kClosed, kRefused},
                                                       {ErrorCode::kInvalidArgument, kUsage}};
  for (const auto& [code, exit_code] : kCodes) {
    if (error.code == code) return report(error, exit_code);
  }
  return report(error, kFailed);
}

int missing(const std::string& key, const rdzv::Endpoint& server) {
  return report("the store at " + server.to_string() + " has no key '" + key + "'", kNoSuchKey);
}

// Keys may contain any bytes; print each as one line.
std::string escaped(const std::string& key) {
  std::string text;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f && c != '\\') {
      text += c;
      continue;
    }
    char escape[8];
    std::snprintf(escape, sizeof escape, c == '\\' ? "\\\\" : "\\x%02x", byte);
    text += escape;
  }
  return printable(text);
}

std::chrono::milliseconds in_ms(double wait_s) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(wait_s, 1e9) * 1000));
}

int get(StoreClient& store, const StoreArguments& arguments) {
  const auto value = store.get(arguments.key, in_ms(arguments.wait_s));
  if (!value && value.error().code == ErrorCode::kTimeout && arguments.wait_s == 0) {
    return missing(arguments.key, store.server());
  }
  if (!value) return report(value.error());
  std::fwrite(value->data(), 1, value->size(), stdout);
  if (::isatty(STDOUT_FILENO) != 0) std::putchar('\n');
  return kDone;
}

int set(StoreClient& store, const StoreArguments& arguments) {
  std::string value = arguments.value;
  if (value == "-") value.assign(std::istreambuf_iterator<char>(std::cin), {});
  auto done = store.set(arguments.key, value);
  if (done) done = store.ping();  // SET has no reply; the reply to PING shows that it has arrived
  return done ? kDone : report(done.error());
}

int add(StoreClient& store, const StoreArguments& arguments) {
  const auto sum = store.add(arguments.key, arguments.delta);
  if (!sum) return report(sum.error());
  std::printf("%lld\n", static_cast<long long>(*sum));
  return kDone;
}

int wait(StoreClient& store, const StoreArguments& arguments) {
  const auto done = store.wait(arguments.keys, in_ms(arguments.timeout_s));
  return done ? kDone : report(done.error());
}

int list(StoreClient& store, const StoreArguments&) {
  auto keys = store.list_keys();
  if (!keys) return report(keys.error());
  std::sort(keys->begin(), keys->end());
  for (const auto& key : *keys) std::printf("%s\n", escaped(key).c_str());
  return kDone;
}

int erase(StoreClient& store, const StoreArguments& arguments) {
  int code = kDone;
  for (const auto& key : arguments.keys) {
    const auto removed = store.delete_key(key);
    if (!removed) return report(removed.error());
    if (!*removed) code = missing(key, store.server());
  }
  return code;
}

int stats(StoreClient& store, const StoreArguments&) {
  const auto start = std::chrono::steady_clock::now();
  if (const auto answered = store.ping(); !answered) return report(answered.error());
  const auto took = std::chrono::steady_clock::now() - start;
  const auto keys = store.num_keys();
  if (!keys) return report(keys.error());
  const auto names = store.list_keys();
  if (!names) return report(names.error());
  std::map<std::string, int> by_prefix;
  for (const auto& name : *names) {
    const auto slash = name.find('/');
    ++by_prefix[slash == std::string::npos ? "(no prefix)" : name.substr(0, slash + 1)];
  }
  std::printf("answers in  %.0f us\n", std::chrono::duration<double, std::micro>(took).count());
  std::printf("keys        %lld\n", static_cast<long long>(*keys));
  for (const auto& [prefix, count] : by_prefix)
    std::printf("  %-40s %d\n", escaped(prefix).c_str(), count);
  return kDone;
}

int serve(const StoreArguments& arguments) {
  if (arguments.listen.empty()) {
    return report(
        "nothing to do; give --listen HOST:PORT or one of get, set, add, wait, list, "
        "delete, stats",
        kUsage);
  }
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ending, signal);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  // Each client needs a descriptor.
  raise_descriptor_limit();

  const auto endpoint = rdzv::parse_endpoint(arguments.listen);
  if (!endpoint) return report(endpoint.error());
  const auto server = StoreServer::start({.address = endpoint->host,
                                          .port = endpoint->port,
                                          .memory_limit = arguments.memory_mib * 1024 * 1024});
  if (!server) {
    return report(server.error(),
                  server.error().code == ErrorCode::kInvalidArgument ? kUsage : kCannotListen);
  }
  std::printf("%s\n", (*server)->bound().to_string().c_str());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ending, &signal);
  return kDone;
}

constexpr std::pair<std::string_view, int (*)(StoreClient&, const StoreArguments&)> kCommands[] = {
    {"get", get},   {"set", set},      {"add", add},    {"wait", wait},
    {"list", list}, {"delete", erase}, {"stats", stats}};

}  // namespace

int use_store(const StoreArguments& arguments) {
  if (arguments.command.empty()) return serve(arguments);
  auto server = rdzv::parse_endpoint(arguments.server);
  if (!server) return report(server.error());
  // Do not wait for a store that is not there yet: the user looks for one that is.
  auto store = StoreClient::connect({.server = std::move(*server),
                                     .connect_timeout = std::chrono::seconds(1),
                                     .timeout = in_ms(arguments.timeout_s)});
  if (!store && store.error().code == ErrorCode::kClosed) return report(store.error(), kNoStore);
  if (!store) return report(store.error());
  for (const auto& [name, command] : kCommands) {
    if (name == arguments.command) return command(**store, arguments);
  }
  return kUsage;
}

}  // namespace ddprun::cli
