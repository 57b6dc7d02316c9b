// Whole files: read one, or put one in place so that a reader, or a crash at any instant, finds the
// old file or the new one and never a part. Throws Failure. Blocking; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/unique_fd.h"

namespace ddprun {

// A name beside `path` under which the two functions below build what is new. It ends with this,
// and a crash may leave it behind: whoever owns the folder removes such files.
inline constexpr std::string_view kUnfinishedSuffix = ".unfinished";

// Writes the pieces one after the other aside, fsync, rename, fsync of the folder.
void write_file_atomically(const std::string& path, const std::vector<std::string_view>& pieces);

// `link` is a symbolic link to `target` from now on, whatever it named before; with fsync of the
// folder. Throws when the file system has no such links, or something that is none has the name (it is
// left alone).
void link_atomically(const std::string& link, const std::string& target);

// Whatever interrupts it; false, with errno, where not all of it fits.
bool write_all(int fd, std::string_view bytes);

std::string read_file(const std::string& path);

// A file that is too large to be read at once; it stays open under whatever name. UsageError for what is no
// regular file.
class FileReader {
 public:
  explicit FileReader(const std::string& path);

  std::uint64_t size() const { return size_; }
  // The bytes from `begin` on that are there; as many as `to` has room for, fewer at the end.
  std::size_t read(std::uint64_t begin, char* to, std::size_t room) const;
  std::string read(std::uint64_t begin, std::size_t size) const;

 private:
  std::string path_;
  rdzv::UniqueFd file_;
  std::uint64_t size_ = 0;
};

}  // namespace ddprun
