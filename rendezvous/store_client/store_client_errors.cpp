#include "rendezvous/store_client/store_client_errors.h"

#include <utility>

namespace ddprun::rdzv::client {
namespace {

std::string in_ms(std::chrono::milliseconds time) { return std::to_string(time.count()) + " ms"; }

std::string join(const std::vector<std::string>& keys) {
  constexpr std::size_t kShown = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kShown); ++i)
    text += (i > 0 ? ", '" : "'") + keys[i] + "'";
  if (keys.size() > kShown) text += " and " + std::to_string(keys.size() - kShown) + " more";
  return text;
}

}  // namespace

Error connect_error(Error last, const StoreClientOptions& options) {
  last.message = "cannot connect to the store at " + options.server.to_string() +
                 (may_pass(last) ? " within " + in_ms(options.connect_timeout) : "") + ": " +
                 last.message;
  return last;
}

Error handshake_error(Error error) {
  if (error.code == ErrorCode::kTimeout)
    error.message = "it accepts connections but does not answer; is it a store?";
  if (error.code == ErrorCode::kClosed)
    error.message = "it closes the connection at the first request; is it a store?";
  return error;
}

Error no_store() { return {ErrorCode::kProtocol, "what listens there is no store", {}}; }

Error uneven_lists(std::size_t keys, std::size_t values) {
  return {
      ErrorCode::kInvalidArgument,
      "multi_set of " + std::to_string(keys) + " keys with " + std::to_string(values) + " values",
      {}};
}

Error failure(const Endpoint& server, ErrorCode code, const std::string& what) {
  return {code, "the store at " + server.to_string() + ": " + what, {}};
}

std::string not_set(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  return "not set within " + in_ms(timeout) + ": " + join(keys);
}

std::string not_reached(std::string_view barrier, std::int64_t world_size,
                        std::chrono::milliseconds timeout) {
  return "the barrier '" + std::string(barrier) + "' was not reached by " +
         std::to_string(world_size) + " clients within " + in_ms(timeout);
}

std::string lost(bool is_closed, const std::string& why) {
  return is_closed ? "it closed the connection" : "the connection is lost: " + why;
}

}  // namespace ddprun::rdzv::client
