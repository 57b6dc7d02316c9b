#include "agent/standby/loaded_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "rendezvous/common/file_text.h"

namespace ddprun::agent {

LoadedFiles::File LoadedFiles::look_at(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return {.path = path};
  return {path, about.st_ino, about.st_mtim.tv_sec * 1'000'000'000L + about.st_mtim.tv_nsec,
          about.st_size};
}

LoadedFiles LoadedFiles::of(pid_t process) {
  LoadedFiles loaded;
  std::istringstream lines(file_text("/proc/" + std::to_string(process) + "/maps"));
  std::string addresses, access, offset, device, path;
  std::uint64_t inode = 0;
  while (lines >> addresses >> access >> offset >> device >> inode && std::getline(lines, path)) {
    path.erase(0, path.find_first_not_of(' '));
    // Each code segment once; what has no file has the inode 0.
    if (inode == 0 || access.find('x') == std::string::npos) continue;
    if (std::ranges::count(loaded.files_, path, &File::path) > 0) continue;
    File file = look_at(path);
    file.inode = inode;  // not that of a file which has taken the path since
    loaded.files_.push_back(std::move(file));
  }
  return loaded;
}

std::string LoadedFiles::changed() const {
  const auto found =
      std::ranges::find_if(files_, [](const File& file) { return look_at(file.path) != file; });
  return found == files_.end() ? "" : found->path;
}

bool runs(pid_t process, const std::string& path) {
  struct stat running {};
  struct stat there {};
  const std::string exe = "/proc/" + std::to_string(process) + "/exe";
  return ::stat(exe.c_str(), &running) == 0 && ::stat(path.c_str(), &there) == 0 &&
         running.st_dev == there.st_dev && running.st_ino == there.st_ino;
}

}  // namespace ddprun::agent
