#include "worker_lib/process/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace ddprun {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

tl::unexpected<Error> io_error(const char* what, const std::string& path) {
  return fail(error_from_errno(errno, std::string(what) + " " + path));
}

Result<void> write_and_sync(const std::string& path, const std::vector<std::string_view>& pieces) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return io_error("cannot create", path);
  for (std::string_view bytes : pieces) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return io_error("cannot write", path);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  if (::fsync(file.get()) != 0) return io_error("cannot write", path);
  return {};
}

Result<void> sync_folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder (EINVAL); the file itself is safe then.
  if (directory && ::fsync(directory.get()) != 0 && errno != EINVAL) {
    return io_error("cannot sync", folder);
  }
  return {};
}

// What was built aside takes its place, or is gone.
Result<void> put_in_place(const std::string& aside, const std::string& path) {
  if (::rename(aside.c_str(), path.c_str()) != 0) {
    auto error = io_error("cannot put in place", path);
    ::unlink(aside.c_str());
    return error;
  }
  return sync_folder_of(path);
}

std::string name_aside(const std::string& path) { return path + std::string(kUnfinishedSuffix); }

}  // namespace

Result<void> write_file_atomically(const std::string& given,
                                   const std::vector<std::string_view>& pieces) {
  std::error_code error;
  const auto kind = std::filesystem::symlink_status(given, error).type();
  // Through a link to what it names: the link stays.
  const std::string path = kind == std::filesystem::file_type::symlink
                               ? std::filesystem::weakly_canonical(given, error).string()
                               : given;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, path + " is not a regular file and is left as it is");
  }
  const std::string aside = name_aside(path);
  if (auto ok = write_and_sync(aside, pieces); !ok) {
    ::unlink(aside.c_str());
    return ok;
  }
  return put_in_place(aside, path);
}

Result<void> link_atomically(const std::string& link, const std::string& target) {
  struct stat status {};
  const bool is_there = ::lstat(link.c_str(), &status) == 0;
  if (is_there && !S_ISLNK(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, link + " is no link and is left as it is");
  }
  std::error_code error;
  if (is_there && std::filesystem::read_symlink(link, error) == target) return {};
  const std::string aside = name_aside(link);
  ::unlink(aside.c_str());
  if (::symlink(target.c_str(), aside.c_str()) != 0) return io_error("cannot make the link", link);
  return put_in_place(aside, link);
}

Result<std::string> read_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return io_error("cannot open", path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return io_error("cannot read", path);
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, path + " is not a regular file");
  }
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read", path);
    if (got == 0) break;  // it shrank meanwhile
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace ddprun
