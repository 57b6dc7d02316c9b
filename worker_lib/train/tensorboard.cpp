#include "ddprun/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "ddprun/error.h"
#include "ddprun/log.h"
#include "worker_lib/process/files.h"
#include "worker_lib/train/event_record.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

// TensorBoard reads the files of a folder in the order of their names: time first, as in its own.
std::string new_file_name() {
  static std::atomic<int> made{0};
  char time[32];
  std::snprintf(time, sizeof time, "%010lld", static_cast<long long>(now()));
  return std::string("events.out.tfevents.") + time + "." + host_name() + "." +
         std::to_string(::getpid()) + "." + std::to_string(made++);
}

}  // namespace

SummaryWriter::SummaryWriter(const std::string& folder, const SummaryWriterOptions& options)
    : path_((fs::path(folder) / new_file_name()).string()) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw UsageError("the TensorBoard folder " + folder + " cannot be created: " + error.message());
  }
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    throw UsageError(error_from_errno(errno, "the event file " + path_ + " cannot be written"));
  }
  append(event_record::version_event(now()));
  if (options.purge_step) append(event_record::start_event(now(), *options.purge_step));
}

SummaryWriter::~SummaryWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void SummaryWriter::add_scalar(std::string_view tag, double value, std::int64_t step) {
  if (fd_ < 0) return;
  append(event_record::scalar_event(now(), step, tag, static_cast<float>(value)));
}

void SummaryWriter::append(const std::string& event) {
  if (write_all(fd_, event_record::record(event))) return;
  // A part of a record, if that much fitted, is where TensorBoard stops reading.
  const Error error = error_from_errno(errno, path_);
  log::warning("no more scalars are recorded for TensorBoard: ", error.to_string());
  ::close(fd_);
  fd_ = -1;
}

}  // namespace ddprun
