#include "worker_lib/process/snapshot_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <type_traits>
#include <utility>

#include "ddprun/error.h"
#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun {
namespace {

constexpr std::uint64_t kPage = 4096;
// Not more than a fraction of what is left: others need memory, too.
constexpr double kOfWhatIsLeft = 0.9;
// The file has no pages where nothing was written, so this costs nothing.
constexpr std::uint64_t kTextBytes = std::uint64_t{64} << 20;

// In the header.
constexpr std::uint32_t kNotRefused = 0;
constexpr std::uint32_t kNoRoom = 1;
constexpr std::uint32_t kTextTooLarge = 2;

std::uint64_t rounded(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

// One process at a time, and in tests one thread; the lock of a process that dies is free.
class FileLock {
 public:
  explicit FileLock(int file) : of_process_(mutex()), file_(file) {
    flock about = whole(F_WRLCK);
    while (::fcntl(file_, F_SETLKW, &about) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() {
    flock about = whole(F_UNLCK);
    ::fcntl(file_, F_SETLK, &about);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static flock whole(int type) {
    flock about{};
    about.l_type = static_cast<short>(type);
    about.l_whence = SEEK_SET;
    return about;
  }

  const std::scoped_lock<std::mutex> of_process_;
  int file_;
};

std::string megabytes(std::uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

Failure text_too_large() {
  return {ErrorCode::kResourceExhausted, "what is no plain tensor takes more than the " +
                                             megabytes(kTextBytes) +
                                             " that a snapshot has room for"};
}

// Throws if they cannot be had.
void check_room(std::uint64_t bytes) {
  const auto refuse = [&](std::uint64_t left, const std::string& who) {
    if (static_cast<double>(bytes) <= kOfWhatIsLeft * static_cast<double>(left)) return;
    throw Failure(ErrorCode::kResourceExhausted, "two snapshots take " + megabytes(bytes) +
                                                     ", and " + who + " has " + megabytes(left) +
                                                     " left");
  };
  if (const auto room = cgroup::memory_room()) {
    refuse(room->left, "the control group " + room->folder);
  }
  const std::string text = file_text("/proc/meminfo");
  constexpr std::string_view kKey = "MemAvailable:";
  if (const auto at = text.find(kKey); at != std::string::npos) {
    refuse(std::strtoull(text.c_str() + at + kKey.size(), nullptr, 10) << 10, "this machine");
  }
}

}  // namespace

// Times of life: the file's. Every field has its value before `magic` has.
struct SnapshotMemory::Header {
  static constexpr std::uint64_t kMagic = 0x504e535250444400;  // "\0DDPRSNP" in memory
  static constexpr std::uint32_t kVersion = 3;
  std::atomic<std::uint64_t> magic;
  std::uint32_t version;
  std::atomic<std::uint32_t> refusal;  // why nothing of this shape is kept
  Shape shape;
  std::atomic<std::int64_t> last_due;
  std::atomic<std::int64_t> next_due;
  std::atomic<std::int64_t>
      told_difference;  // the step of the difference that a process has told of; -1: none
};

// What one rank says of its parts of a slot.
struct SnapshotMemory::Head {
  Turn turn;
  std::int64_t step;
  std::int32_t rank;  // of the job, and how many it had
  std::int32_t world_size;
  std::uint64_t text_bytes;  // of the node's first rank
  std::uint64_t own_bytes;
  std::uint32_t text_sum;
  std::uint32_t own_sum;
  std::uint32_t data_sum;
  std::uint32_t sum;  // over the other fields and the shape
  std::uint64_t values;
  std::uint64_t number;
  std::int32_t peer;  // -1: no other share was summed
  std::uint32_t peer_sum;
  std::uint64_t call;
  std::uint64_t reserved[5];

  std::uint32_t sum_with(const Shape& shape) const {
    const std::uint64_t all[] = {static_cast<std::uint64_t>(step),
                                 static_cast<std::uint32_t>(rank),
                                 static_cast<std::uint32_t>(world_size),
                                 text_bytes,
                                 own_bytes,
                                 text_sum,
                                 own_sum,
                                 data_sum,
                                 values,
                                 number,
                                 static_cast<std::uint32_t>(peer),
                                 peer_sum,
                                 call,
                                 static_cast<std::uint32_t>(shape.ranks),
                                 shape.data_bytes,
                                 shape.own_bytes,
                                 shape.layout};
    return stream_sum({reinterpret_cast<const char*>(all), sizeof all});
  }
};

// Where everything lies.
struct SnapshotMemory::Places {
  explicit Places(const Shape& shape)
      : own_size(rounded(shape.own_bytes, kPage)),
        share(rounded((shape.data_bytes + ranks_of(shape) - 1) / ranks_of(shape), 64)),
        data_size(rounded(share * ranks_of(shape), kPage)),
        own(kPage + rounded(2 * sizeof(Head) * ranks_of(shape), kPage)),
        text(own + 2 * own_size * ranks_of(shape)),
        data(text + 2 * kTextBytes),
        end(data + 2 * data_size) {}

  static std::uint64_t ranks_of(const Shape& shape) {
    return static_cast<std::uint64_t>(shape.ranks);
  }
  static bool are_possible(const Shape& shape) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 46;
    return shape.ranks >= 1 && shape.ranks <= 1 << 16 && shape.data_bytes <= kMost &&
           shape.own_bytes <= kMost / ranks_of(shape);
  }
  std::uint64_t two_snapshots() const { return 2 * data_size + text - own; }
  std::uint64_t share_begin(const Shape& shape, int writer) const {
    return std::min(share * static_cast<std::uint64_t>(writer), shape.data_bytes);
  }
  std::uint64_t share_end(const Shape& shape, int writer) const {
    return share_begin(shape, writer + 1);
  }
  std::uint64_t own_of(int writer, int slot) const {
    return own + static_cast<std::uint64_t>(2 * writer + slot) * own_size;
  }
  std::uint64_t text_of(int slot) const {
    return text + static_cast<std::uint64_t>(slot) * kTextBytes;
  }
  std::uint64_t data_of(int slot) const {
    return data + static_cast<std::uint64_t>(slot) * data_size;
  }

  std::uint64_t own_size;
  std::uint64_t share;
  std::uint64_t data_size;
  std::uint64_t own;
  std::uint64_t text;
  std::uint64_t data;
  std::uint64_t end;
};

// The number may long be another file's, so the name is asked for, too. As with the link, a descriptor that is
// closed at an exec is somebody's already.
std::shared_ptr<SnapshotMemory> SnapshotMemory::of_this_process() {
  static const std::shared_ptr<SnapshotMemory> opened = []() -> std::shared_ptr<SnapshotMemory> {
    const char* const number = std::getenv(link::kSnapshotVariable);
    if (number == nullptr) return nullptr;
    const int fd = std::atoi(number);
    if (!is_memory_named(fd, link::kSnapshotName) || !take_descriptor(fd)) return nullptr;
    return open(rdzv::UniqueFd(fd));
  }();
  return opened;
}

std::shared_ptr<SnapshotMemory> SnapshotMemory::open(rdzv::UniqueFd file) {
  struct stat about {};
  OwnerMark mark = OwnerMark::make();
  if (!mark.is_set() || !file || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return nullptr;
  }
  return std::shared_ptr<SnapshotMemory>(new SnapshotMemory(std::move(file), std::move(mark)));
}

SnapshotMemory::SnapshotMemory(rdzv::UniqueFd file, OwnerMark mark)
    : file_(std::move(file)), mark_(std::move(mark)) {
  static_assert(sizeof(Header) <= kPage && sizeof(Head) == 128 &&
                std::is_trivially_copyable_v<Shape>);
}

bool SnapshotMemory::map(std::uint64_t bytes) {
  if (mapping_ && mapping_.size() == bytes) return true;
  mapping_ = Mapping(file_.get(), bytes);
  return static_cast<bool>(mapping_);
}

SnapshotMemory::Header& SnapshotMemory::header() const {
  return *reinterpret_cast<Header*>(mapping_.data());
}

SnapshotMemory::Head& SnapshotMemory::head(int writer, int slot) const {
  return reinterpret_cast<Head*>(mapping_.data() + kPage)[2 * writer + slot];
}

bool SnapshotMemory::is_readable() const {
  return mapping_ && header().magic == Header::kMagic && header().version == Header::kVersion &&
         Places::are_possible(header().shape) && Places(header().shape).end <= mapping_.size();
}

bool SnapshotMemory::use(const Shape& shape, std::optional<std::uint64_t> own_needed) {
  if (!Places::are_possible(shape)) {
    throw Failure(ErrorCode::kResourceExhausted, "the state is too large for snapshots");
  }
  const auto is_right = [&](const Shape& there) {
    Shape wanted = shape;
    if (own_needed && there.own_bytes >= *own_needed) wanted.own_bytes = there.own_bytes;
    return there == wanted;
  };
  if (file_.get() < 0) {
    throw Failure(ErrorCode::kClosed, "the program has closed the descriptor of their memory");
  }
  const FileLock lock(file_.get());
  struct stat about {};
  ::fstat(file_.get(), &about);
  const bool is_laid_out = about.st_size >= static_cast<off_t>(kPage) &&
                           map(static_cast<std::uint64_t>(about.st_size)) && is_readable() &&
                           is_right(header().shape);
  if (is_laid_out && header().refusal == kTextTooLarge) throw text_too_large();
  if (is_laid_out && header().refusal != kNotRefused) {
    throw Failure(ErrorCode::kResourceExhausted,
                  "two snapshots take " + megabytes(Places(header().shape).two_snapshots()) +
                      ": there was no room for them");
  }
  if (!is_laid_out) lay_out(shape);
  shape_ = header().shape;
  return !is_laid_out;
}

// Under the lock. It becomes zeroes, and never shorter, so that nobody who has mapped it faults.
void SnapshotMemory::lay_out(const Shape& shape) {
  const Places places(shape);
  struct stat about {};
  const bool is_made =
      ::fstat(file_.get(), &about) == 0 &&
      (about.st_size == 0 || ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                         about.st_size) == 0) &&
      (about.st_size >= static_cast<off_t>(places.end) ||
       ::ftruncate(file_.get(), static_cast<off_t>(places.end)) == 0) &&
      map(std::max(places.end, static_cast<std::uint64_t>(about.st_size)));
  if (!is_made) throw Failure(error_from_errno(errno, "memory for snapshots"));
  header().version = Header::kVersion;
  header().shape = shape;
  header().last_due = header().next_due = header().told_difference = -1;
  try {
    check_room(places.two_snapshots());
  } catch (const Failure&) {
    header().refusal = kNoRoom;
    header().magic = Header::kMagic;
    throw;
  }
  header().magic = Header::kMagic;
}

// ---- writing

SnapshotMemory::Part SnapshotMemory::begin(int local_rank, std::int64_t step, int rank,
                                           int world_size, std::uint64_t call) {
  const Places places(shape_);
  // Every rank of the node chooses the same: a rank that has begun makes none whole, and spoils only the one
  // that is not the newest.
  const auto first = found_in(0);
  const auto second = found_in(1);
  const bool is_first_newest = first && (!second || first->when() > second->when());
  Part part{.slot = is_first_newest ? 1 : 0,
            .local_rank = local_rank,
            .step = step,
            .rank = rank,
            .world_size = world_size,
            .call = call,
            .begin = places.share_begin(shape_, local_rank)};
  if (!mark_.is_set()) return part;  // a forked child, which has no room to write
  part.own = {mapping_.data() + places.own_of(local_rank, part.slot), shape_.own_bytes};
  part.share = {mapping_.data() + places.data_of(part.slot) + part.begin,
                places.share_end(shape_, local_rank) - part.begin};
  // From the newest one, too, so that a process that takes the place of a rank goes on counting.
  if (first || second) part.number = head(local_rank, 1 - part.slot).number + 1;
  if (const auto others = static_cast<std::uint64_t>(shape_.ranks - 1); others > 0) {
    const int distance = 1 + static_cast<int>(part.number % others);
    part.peer = (local_rank + distance) % shape_.ranks;
    part.peer_begin = places.share_begin(shape_, part.peer);
    part.peer_end = places.share_end(shape_, part.peer);
  }
  head(local_rank, part.slot).turn.begin();
  return part;
}

// If another rank lays the memory out anew right after the comparison, the head's sum does not fit the new shape.
bool SnapshotMemory::finish(Part& part, std::string_view text, std::string_view own) {
  const Places places(shape_);
  if (!mark_.is_set()) return false;
  if (text.size() > kTextBytes) {
    const FileLock lock(file_.get());
    if (header().shape == shape_) header().refusal = kTextTooLarge;
    throw text_too_large();
  }
  if (header().shape != shape_ || part.own_sum.size() + own.size() > part.own.size() ||
      part.sum.size() != part.share.size() ||
      (part.peer_sum.size() > 0 && part.peer_sum.size() != part.peer_end - part.peer_begin)) {
    return false;
  }
  if (!text.empty()) {
    std::memcpy(mapping_.data() + places.text_of(part.slot), text.data(), text.size());
  }
  part.own_sum.copy(part.own.data(), own.data(), own.size());
  Head& said = head(part.local_rank, part.slot);
  said.step = part.step;
  said.rank = part.rank;
  said.world_size = part.world_size;
  said.text_bytes = text.size();
  said.own_bytes = part.own_sum.size();
  said.text_sum = stream_sum(text);
  said.own_sum = part.own_sum.finish();
  said.data_sum = part.sum.finish();
  said.values = part.values;
  said.number = part.number;
  said.peer = part.peer_sum.size() > 0 ? part.peer : -1;
  said.peer_sum = part.peer_sum.finish();
  said.call = part.call;
  said.sum = said.sum_with(shape_);
  said.turn.end();
  return true;
}

SnapshotMemory::Due SnapshotMemory::due() {
  if (!mapping_) find();
  if (!mapping_ || header().magic != Header::kMagic) return {};
  return {header().last_due.load(), header().next_due.load()};
}

void SnapshotMemory::set_due(const Due& due) {
  if (!mapping_) find();
  if (!mapping_ || header().magic != Header::kMagic) return;
  header().last_due = due.last;
  header().next_due = due.next;
}

// ---- reading

bool SnapshotMemory::says(const Head& said, std::int64_t step) const {
  return said.turn.is_whole() && said.step == step && said.text_bytes <= kTextBytes &&
         said.own_bytes <= header().shape.own_bytes && said.sum == said.sum_with(header().shape);
}

std::optional<SnapshotMemory::Found> SnapshotMemory::found_in(int slot) const {
  auto found = written_in(slot);
  if (found && difference_in(*found)) found.reset();
  return found;
}

std::optional<SnapshotMemory::Found> SnapshotMemory::written_in(int slot) const {
  const Head& first = head(0, slot);
  Found found{.slot = slot, .step = first.step, .call = first.call, .world_size = first.world_size};
  for (int writer = 0; writer < header().shape.ranks; ++writer) {
    const Head& said = head(writer, slot);
    const bool is_of_it =
        says(said, found.step) && said.call == found.call && said.world_size == found.world_size;
    if (!is_of_it) return std::nullopt;
    found.ranks.push_back(said.rank);
  }
  return found;
}

std::optional<SnapshotMemory::Difference> SnapshotMemory::difference_in(const Found& found) const {
  const Head& first = head(0, found.slot);
  for (int writer = 0; writer < std::ssize(found.ranks); ++writer) {
    const Head& said = head(writer, found.slot);
    const bool is_compared = said.peer >= 0 && said.peer < std::ssize(found.ranks);
    if (is_compared && head(said.peer, found.slot).data_sum != said.peer_sum) {
      return Difference{found.step, std::min(said.rank, head(said.peer, found.slot).rank),
                        std::max(said.rank, head(said.peer, found.slot).rank)};
    }
    if (said.values != first.values) return Difference{found.step, first.rank, said.rank};
  }
  return std::nullopt;
}

std::optional<SnapshotMemory::Difference> SnapshotMemory::difference() const {
  std::optional<Difference> newest;
  for (const int slot : {0, 1}) {
    const auto found = is_readable() ? written_in(slot) : std::nullopt;
    const auto its = found ? difference_in(*found) : std::nullopt;
    // A rank that has begun the next one meanwhile may have changed its head while it was read.
    if (its && written_in(slot) && (!newest || its->step > newest->step)) newest = its;
  }
  return newest;
}

bool SnapshotMemory::is_first_to_tell(const Difference& difference) {
  std::int64_t none = -1;
  return mark_.is_set() && header().told_difference.compare_exchange_strong(none, difference.step);
}

bool SnapshotMemory::is_difference_told() const {
  return is_readable() && header().told_difference >= 0;
}

std::uint32_t SnapshotMemory::sum_of_values(const Found& found) const {
  std::vector<std::uint64_t> all = {header().shape.layout, head(0, found.slot).values};
  for (int writer = 0; writer < std::ssize(found.ranks); ++writer) {
    all.push_back(sum_of_share(found, writer));
  }
  return stream_sum({reinterpret_cast<const char*>(all.data()), all.size() * sizeof all[0]});
}

std::vector<SnapshotMemory::Found> SnapshotMemory::find(std::string* why) {
  const auto none = [&](const char* sentence) {
    if (why != nullptr) *why = sentence;
    return std::vector<Found>();
  };
  const FileLock lock(file_.get());
  struct stat about {};
  ::fstat(file_.get(), &about);
  if (about.st_size < static_cast<off_t>(kPage)) return none("");
  const auto size = static_cast<std::uint64_t>(about.st_size);
  if (!map(size) || header().magic != Header::kMagic) return none("it is not whole");
  if (header().version != Header::kVersion) return none("another version of ddprun wrote it");
  if (!is_readable()) return none("it is not whole");
  std::vector<Found> all;
  for (const int slot : {0, 1}) {
    if (auto found = found_in(slot)) all.push_back(std::move(*found));
  }
  std::ranges::sort(all, std::ranges::greater(), &Found::when);
  if (all.empty() && is_damaged()) return none("it is damaged");
  return all;
}

// A process that is killed leaves no head that says that it is whole, and is not.
bool SnapshotMemory::is_damaged() const {
  for (int writer = 0; writer < header().shape.ranks; ++writer) {
    for (const int slot : {0, 1}) {
      const Head& said = head(writer, slot);
      if (said.turn.is_whole() && !says(said, said.step)) return true;
    }
  }
  return false;
}

bool SnapshotMemory::are_texts_whole(const Found& found, int writer) const {
  const Head& said = head(writer, found.slot);
  return says(said, found.step) && stream_sum(own(found, writer)) == said.own_sum &&
         (writer != 0 || stream_sum(text(found)) == said.text_sum);
}

bool SnapshotMemory::is_whole(const Found& found, int writer) const {
  return are_texts_whole(found, writer) &&
         stream_sum(share(found, writer)) == sum_of_share(found, writer);
}

std::string_view SnapshotMemory::share(const Found& found, int writer) const {
  const Shape& shape = header().shape;
  const Places places(shape);
  const std::uint64_t begin = places.share_begin(shape, writer);
  return data(found).substr(begin, places.share_end(shape, writer) - begin);
}

std::uint32_t SnapshotMemory::sum_of_share(const Found& found, int writer) const {
  return head(writer, found.slot).data_sum;
}

void SnapshotMemory::forget(const Found& found, int writer) {
  if (mark_.is_set()) head(writer, found.slot).turn.begin();
}

std::string_view SnapshotMemory::data(const Found& found) const {
  const Places places(header().shape);
  return {mapping_.data() + places.data_of(found.slot), header().shape.data_bytes};
}

std::string_view SnapshotMemory::text(const Found& found) const {
  return {mapping_.data() + Places(header().shape).text_of(found.slot),
          head(0, found.slot).text_bytes};
}

std::string_view SnapshotMemory::own(const Found& found, int writer) const {
  return {mapping_.data() + Places(header().shape).own_of(writer, found.slot),
          head(writer, found.slot).own_bytes};
}

void SnapshotMemory::forget_after(int local_rank, std::int64_t step, std::uint64_t call) {
  if (!mapping_ || local_rank >= header().shape.ranks || !mark_.is_set()) return;
  for (const int slot : {0, 1}) {
    Head& said = head(local_rank, slot);
    if (std::pair(said.step, said.call) > std::pair(step, call)) said.turn.begin();
  }
  header().told_difference = -1;
  std::uint32_t text_too_large = kTextTooLarge;
  header().refusal.compare_exchange_strong(text_too_large, kNotRefused);
}

}  // namespace ddprun
