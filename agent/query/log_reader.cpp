#include "agent/query/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kPartBytesMax = std::size_t{64} * 1024;
constexpr std::size_t kAnswerBytesMax = std::size_t{256} * 1024;  // of all parts together

// One stream, and how to read it.
struct Reading {
  LogPart part;  // with what is known before reading
  bool has_place = false;
  std::string earlier_file;  // of the followed round, if a later round runs now
  LogPlace earlier;
};

struct Bytes {
  std::string text;
  std::uint64_t begin = 0;
  std::string trouble;
};

// From offset `at`, or the last bytes.
Bytes read_file(const std::string& path, std::uint64_t at, bool has_place) {
  Bytes bytes;
  const rdzv::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat found {};
  if (!fd || ::fstat(fd.get(), &found) != 0) {
    bytes.trouble = path + ": " + std::strerror(errno);
    return bytes;
  }
  const auto size = static_cast<std::uint64_t>(found.st_size);
  bytes.begin =
      has_place ? std::min(at, size) : size - std::min<std::uint64_t>(size, kPartBytesMax);
  bytes.text.resize(std::min<std::uint64_t>(size - bytes.begin, kPartBytesMax));
  const ssize_t count =
      ::pread(fd.get(), bytes.text.data(), bytes.text.size(), static_cast<off_t>(bytes.begin));
  bytes.text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  if (count < 0) bytes.trouble = path + ": " + std::strerror(errno);
  return bytes;
}

void take(LogPart& part, std::string_view text, std::uint64_t begin, bool has_place,
          const LogQuery& question) {
  if (!has_place) {  // start at the first of its last lines
    const std::string_view last = last_lines(text, question.lines);
    begin += text.size() - last.size();
    text = last;
  }
  text = whole_lines(text, question.is_final || text.size() >= kPartBytesMax);
  part.text = text;
  part.next.at = begin + text.size();
}

// The part of the kept lines that was not sent yet.
void take_kept(LogPart& part, const Tail& kept, bool has_place, const LogQuery& question) {
  part.source = LogPart::Source::kRecent;
  const std::uint64_t begin = kept.total() - kept.bytes().size();
  const std::uint64_t from = std::clamp(part.next.at, begin, kept.total());
  if (has_place && from > part.next.at) part.missed = from - part.next.at;
  take(part, kept.bytes().substr(from - begin), from, has_place, question);
}

LogPart read(Reading reading, const LogQuery& question) {
  LogPart& part = reading.part;
  if (!reading.earlier_file.empty()) {  // first the rest of the earlier round
    Bytes rest = read_file(reading.earlier_file, reading.earlier.at, /*has_place=*/true);
    if (!rest.text.empty()) {
      part.file = reading.earlier_file;
      part.next = reading.earlier;
      part.next.at = rest.begin + rest.text.size();
      part.text = std::move(rest.text);
      return part;
    }
  }
  const Bytes bytes = read_file(part.file, part.next.at, reading.has_place);
  part.trouble = bytes.trouble;
  take(part, bytes.text, bytes.begin, reading.has_place, question);
  return part;
}

std::vector<LogPart> read_all(std::vector<LogPart> parts, const std::vector<Reading>& readings,
                              const LogQuery& question) {
  std::size_t bytes = 0;
  for (const LogPart& part : parts) bytes += part.text.size();
  for (const Reading& each : readings) {
    if (bytes >= kAnswerBytesMax) break;  // the next question continues there
    parts.push_back(read(each, question));
    bytes += parts.back().text.size();
  }
  return parts;
}

}  // namespace

LogReader::LogReader(boost::asio::io_context& io, const Output& output, std::function<Node()> node)
    : io_(io), output_(output), node_(std::move(node)) {}

void LogReader::answer(const LogQuery& question, Reply reply) {
  const Node node = node_();
  std::vector<LogPart> parts;
  std::vector<Reading> readings;
  for (int local_rank = 0; local_rank < node.workers; ++local_rank) {
    const int rank = node.rank_offset + local_rank;
    if (!question.ranks.empty() && std::ranges::count(question.ranks, rank) == 0) continue;
    for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
      const Output::Readable readable = output_.readable(local_rank, stream);
      const auto place = std::ranges::find_if(question.places, [&](const LogPlace& each) {
        return each.rank == rank && each.stream == stream;
      });
      Reading reading;
      reading.has_place = place != question.places.end();
      const bool is_same_round = reading.has_place && place->round == readable.round;
      LogPart& part = reading.part;
      part.host = node.host;
      part.next = {rank, stream, readable.round, is_same_round ? place->at : 0};
      part.file = readable.file;
      if (!readable.file.empty()) {
        if (reading.has_place && !is_same_round) {
          reading.earlier_file = output_.file_of(place->round, local_rank, stream);
          reading.earlier = *place;
        }
        readings.push_back(std::move(reading));
      } else if (readable.kept != nullptr) {
        take_kept(part, *readable.kept, reading.has_place, question);
        parts.push_back(std::move(part));
      } else {
        part.source = LogPart::Source::kElsewhere;
        parts.push_back(std::move(part));
      }
    }
  }
  if (readings.empty()) {
    boost::asio::post(io_, [reply = std::move(reply), parts = std::move(parts)]() mutable {
      reply(std::move(parts));
    });
    return;
  }
  read_beside([parts = std::move(parts), readings = std::move(readings),
               question] { return read_all(parts, readings, question); },
              std::move(reply));
}

// If all reading threads hang, no question is answered any more.
void LogReader::read_beside(std::function<std::vector<LogPart>()> read, Reply reply) {
  const auto free = std::ranges::find(readers_, false, &Reader::is_busy);
  if (free == readers_.end()) return;
  if (!free->calls) {
    free->calls = std::make_unique<BlockingCalls>(io_.get_executor(), "ddprun-logs");
  }
  free->is_busy = true;
  free->calls->run<std::vector<LogPart>>(
      std::move(read), [free, reply = std::move(reply)](std::vector<LogPart> parts) {
        free->is_busy = false;
        reply(std::move(parts));
      });
}

}  // namespace ddprun::agent
