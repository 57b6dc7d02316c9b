#include "worker_lib/process/error_file.h"

#include <boost/json.hpp>

#include "worker_lib/process/files.h"

namespace ddprun {

std::string error_file_json(const FailureDescription& failure) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(failure.at.time_since_epoch()).count();
  const boost::json::value document = {
      {"message",
       {{"message", failure.type + ": " + failure.message},
        {"extraInfo", {{"py_callstack", failure.trace}, {"timestamp", std::to_string(seconds)}}}}}};
  return boost::json::serialize(document);
}

void write_error_file(const std::string& path, const FailureDescription& failure) {
  write_file_atomically(path, {error_file_json(failure)});
}

}  // namespace ddprun
