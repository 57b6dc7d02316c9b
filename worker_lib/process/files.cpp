#include "worker_lib/process/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "ddprun/error.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun {
namespace {

[[noreturn]] void throw_errno(const char* what, const std::string& path) {
  throw Failure(error_from_errno(errno, std::string(what) + " " + path));
}

void write_and_sync(const std::string& path, const std::vector<std::string_view>& pieces) {
  const rdzv::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) throw_errno("cannot create", path);
  for (const std::string_view bytes : pieces) {
    if (!write_all(file.get(), bytes)) throw_errno("cannot write", path);
  }
  if (::fsync(file.get()) != 0) throw_errno("cannot write", path);
}

void sync_folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  const rdzv::UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder (EINVAL); the file itself is safe then.
  if (directory && ::fsync(directory.get()) != 0 && errno != EINVAL) {
    throw_errno("cannot sync", folder);
  }
}

// Builds something under a name beside `path`, which then takes its place, or is gone.
template <typename Build>
void put_in_place(const std::string& path, const Build& build) {
  const std::string aside = path + std::string(kUnfinishedSuffix);
  try {
    build(aside);
    if (::rename(aside.c_str(), path.c_str()) != 0) throw_errno("cannot put in place", path);
  } catch (...) {
    ::unlink(aside.c_str());
    throw;
  }
  sync_folder_of(path);
}

}  // namespace

void write_file_atomically(const std::string& given, const std::vector<std::string_view>& pieces) {
  std::error_code error;
  const auto kind = std::filesystem::symlink_status(given, error).type();
  // Through a link to what it names: the link stays.
  const std::string path = kind == std::filesystem::file_type::symlink
                               ? std::filesystem::weakly_canonical(given, error).string()
                               : given;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw UsageError(path + " is not a regular file and is left as it is");
  }
  put_in_place(path, [&](const std::string& aside) { write_and_sync(aside, pieces); });
}

void link_atomically(const std::string& link, const std::string& target) {
  struct stat status {};
  const bool is_there = ::lstat(link.c_str(), &status) == 0;
  if (is_there && !S_ISLNK(status.st_mode)) {
    throw UsageError(link + " is no link and is left as it is");
  }
  std::error_code error;
  if (is_there && std::filesystem::read_symlink(link, error) == target) return;
  put_in_place(link, [&](const std::string& aside) {
    ::unlink(aside.c_str());
    if (::symlink(target.c_str(), aside.c_str()) != 0) throw_errno("cannot make the link", link);
  });
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = TEMP_FAILURE_RETRY(::write(fd, bytes.data(), bytes.size()));
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string read_file(const std::string& path) {
  const FileReader file(path);
  return file.read(0, file.size());
}

FileReader::FileReader(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!file_) throw_errno("cannot open", path);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_errno("cannot read", path);
  if (!S_ISREG(status.st_mode)) {
    throw UsageError(path + " is not a regular file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::size_t FileReader::read(std::uint64_t begin, char* to, std::size_t room) const {
  std::size_t filled = 0;
  while (filled < room) {
    const ssize_t got = TEMP_FAILURE_RETRY(
        ::pread(file_.get(), to + filled, room - filled, static_cast<off_t>(begin + filled)));
    if (got < 0) throw_errno("cannot read", path_);
    if (got == 0) break;  // it shrank meanwhile
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

std::string FileReader::read(std::uint64_t begin, std::size_t size) const {
  std::string bytes(size, '\0');
  bytes.resize(read(begin, bytes.data(), size));
  return bytes;
}

}  // namespace ddprun
