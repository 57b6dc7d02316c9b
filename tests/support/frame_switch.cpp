#include "tests/support/frame_switch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

namespace ddprun::test {
namespace {

constexpr std::size_t kLargestFrame = 65536;
constexpr int kFramesInARow = 64;  // from one port, before the others have their turn
constexpr std::size_t kEthernetHeader = 14;
constexpr std::size_t kTcpHeader = 20;
constexpr std::uint32_t kTcp = 6;                                      // the protocol's number
constexpr std::string_view kAddressPrefix("\x02\x77\x00\x00\x00", 5);  // then the port's number

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// ---- frames: integers in network byte order, at any alignment

std::uint32_t number_at(const std::string& frame, std::size_t at, std::size_t size) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < size; ++i) {
    number = number << 8 | static_cast<unsigned char>(frame[at + i]);
  }
  return number;
}

void put_number(std::string& frame, std::size_t at, std::size_t size, std::uint32_t number) {
  for (std::size_t i = size; i-- > 0; number >>= 8) frame[at + i] = static_cast<char>(number);
}

// The offsets of the parts of a TCP segment in its frame.
struct Segment {
  std::size_t addresses = 0;  // source, then destination
  std::size_t address_size = 0;
  std::size_t length_field = 0;     // of the IP packet
  std::size_t length_excludes = 0;  // what that field does not count
  std::size_t tcp = 0;

  static std::optional<Segment> in(const std::string& frame) {
    constexpr std::uint32_t kIpv4 = 0x0800, kIpv6 = 0x86dd;
    constexpr std::size_t kIp = kEthernetHeader;
    constexpr std::size_t kIpv4Header = 20, kIpv6Header = 40;
    if (frame.size() < kIp + kIpv4Header + kTcpHeader) return std::nullopt;
    const std::uint32_t type = number_at(frame, 12, 2);
    Segment segment;
    if (type == kIpv4 && number_at(frame, kIp + 9, 1) == kTcp) {
      segment.addresses = kIp + 12;
      segment.address_size = 4;
      segment.length_field = kIp + 2;
      segment.tcp = kIp + (number_at(frame, kIp, 1) & 0xf) * 4;
    } else if (type == kIpv6 && number_at(frame, kIp + 6, 1) == kTcp) {
      segment.addresses = kIp + 8;
      segment.address_size = 16;
      segment.length_field = kIp + 4;
      segment.length_excludes = kIpv6Header;
      segment.tcp = kIp + kIpv6Header;
    } else {
      return std::nullopt;
    }
    if (frame.size() < segment.tcp + kTcpHeader) return std::nullopt;
    return segment;
  }
};

constexpr std::uint32_t kSyn = 0x02, kRst = 0x04, kAck = 0x10;

std::uint32_t sum_of(const std::string& frame, std::size_t begin, std::size_t end) {
  std::uint32_t sum = 0;
  for (std::size_t at = begin; at + 1 < end; at += 2) sum += number_at(frame, at, 2);
  return sum;
}

std::uint32_t checksum(std::uint32_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}

// A reset with this sequence number that replaces the segment, in its direction or the opposite
// one.
std::string reset(const std::string& original, const Segment& segment, std::uint32_t sequence,
                  bool is_going_back) {
  std::string frame = original.substr(0, segment.tcp + kTcpHeader);
  const std::size_t tcp = segment.tcp;
  const auto swap = [&frame](std::size_t at, std::size_t size) {
    const auto begin = frame.begin() + static_cast<std::ptrdiff_t>(at);
    const auto middle = begin + static_cast<std::ptrdiff_t>(size);
    std::swap_ranges(begin, middle, middle);
  };
  if (is_going_back) {
    swap(0, 6);
    swap(segment.addresses, segment.address_size);
    swap(tcp, 2);
  }
  const auto ip_size = static_cast<std::uint32_t>(frame.size() - kEthernetHeader);
  put_number(frame, segment.length_field, 2,
             ip_size - static_cast<std::uint32_t>(segment.length_excludes));
  if (segment.length_excludes == 0) {  // IPv4 has its own checksum
    put_number(frame, kEthernetHeader + 10, 2, 0);
    put_number(frame, kEthernetHeader + 10, 2, checksum(sum_of(frame, kEthernetHeader, tcp)));
  }
  put_number(frame, tcp + 4, 4, sequence);
  put_number(frame, tcp + 8, 4, 0);
  put_number(frame, tcp + 12, 1, kTcpHeader / 4 << 4);
  put_number(frame, tcp + 13, 1, kRst);
  put_number(frame, tcp + 16, 2, 0);
  put_number(
      frame, tcp + 16, 2,
      checksum(sum_of(frame, segment.addresses, segment.addresses + 2 * segment.address_size) +
               kTcp + kTcpHeader + sum_of(frame, tcp, tcp + kTcpHeader)));
  return frame;
}

}  // namespace

std::string FrameSwitch::hardware_address(std::size_t port) {
  char text[18];
  std::snprintf(text, sizeof text, "02:77:00:00:00:%02x", static_cast<unsigned>(port & 0xff));
  return text;
}

FrameSwitch::FrameSwitch(std::vector<UniqueFd> taps)
    : taps_(std::move(taps)), over_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), cables_(taps_.size()) {
  if (!over_) throw_errno("eventfd");
  thread_ = std::thread([this] { carry_frames(); });
}

FrameSwitch::~FrameSwitch() {
  eventfd_write(over_.get(), 1);
  thread_.join();
}

void FrameSwitch::set_cable(std::size_t port, const Cable& cable) {
  const std::lock_guard lock(mutex_);
  cables_.at(port) = cable;
}

bool FrameSwitch::break_connection(std::size_t port, std::uint16_t tcp_port,
                                   std::chrono::milliseconds deadline) {
  std::unique_lock lock(mutex_);
  breaking_ = Breaking{port, tcp_port};
  const bool is_done = broken_.wait_for(lock, deadline, [this] { return !breaking_; });
  breaking_.reset();
  return is_done;
}

void FrameSwitch::carry_frames() {
  std::vector<pollfd> polled;
  for (const UniqueFd& tap : taps_) polled.push_back({tap.get(), POLLIN, 0});
  polled.push_back({over_.get(), POLLIN, 0});
  std::string buffer(kLargestFrame, '\0');
  for (;;) {
    const auto next = deliver_due();
    timespec timeout{};
    if (next) {
      const auto ns = std::max<std::int64_t>(std::chrono::nanoseconds(*next).count(), 0);
      timeout = {ns / 1'000'000'000, ns % 1'000'000'000};
    }
    ppoll(polled.data(), polled.size(), next ? &timeout : nullptr, nullptr);
    if (polled.back().revents != 0) return;
    for (std::size_t port = 0; port < taps_.size(); ++port) {
      if (polled[port].revents == 0) continue;
      for (int frames = 0; frames < kFramesInARow; ++frames) {
        const ssize_t size = read(taps_[port].get(), buffer.data(), buffer.size());
        if (size <= 0) break;
        take_in(port, buffer.substr(0, static_cast<std::size_t>(size)));
      }
    }
  }
}

void FrameSwitch::take_in(std::size_t port, std::string frame) {
  if (frame.size() < kEthernetHeader) return;
  const std::lock_guard lock(mutex_);
  if (!cables_[port].sends || is_lost(cables_[port])) return;

  const auto segment = breaking_ && breaking_->port == port ? Segment::in(frame) : std::nullopt;
  if (segment && (number_at(frame, segment->tcp, 2) == breaking_->tcp_port ||
                  number_at(frame, segment->tcp + 2, 2) == breaking_->tcp_port)) {
    const std::uint32_t flags = number_at(frame, segment->tcp + 13, 1);
    // A segment that opens or resets a connection does not have the numbers of both ends.
    if ((flags & (kSyn | kRst)) == 0 && (flags & kAck) != 0) {
      const std::uint32_t sequence = number_at(frame, segment->tcp + 4, 4);
      const std::uint32_t acknowledged = number_at(frame, segment->tcp + 8, 4);
      deliver({port, reset(frame, *segment, acknowledged, /*is_going_back=*/true)});
      frame = reset(frame, *segment, sequence, /*is_going_back=*/false);
      breaking_.reset();
      broken_.notify_all();
    }
  }

  const auto to = static_cast<unsigned char>(frame[kAddressPrefix.size()]);
  if (frame.starts_with(kAddressPrefix)) {
    if (to < taps_.size()) send(port, to, frame);
    return;
  }
  for (std::size_t other = 0; other < taps_.size(); ++other) {
    if (other != port) send(port, other, frame);
  }
}

void FrameSwitch::send(std::size_t from, std::size_t to, const std::string& frame) {
  if (is_lost(cables_[to])) return;
  const auto time = time_on(cables_[from]) + time_on(cables_[to]);
  if (time == Clock::duration::zero()) {
    deliver({to, frame});
  } else {
    delayed_.insert({Clock::now() + time, Delivery{to, frame}});
  }
}

void FrameSwitch::deliver(const Delivery& delivery) const {
  if (!cables_[delivery.port].receives) return;
  // A device that is down refuses the frame; then it is lost, as on a real cable.
  [[maybe_unused]] const ssize_t written =
      write(taps_[delivery.port].get(), delivery.frame.data(), delivery.frame.size());
}

// Returns the time until the next frame is due; nullopt if none waits.
std::optional<FrameSwitch::Clock::duration> FrameSwitch::deliver_due() {
  const std::lock_guard lock(mutex_);
  while (!delayed_.empty()) {
    const auto first = delayed_.begin();
    if (const auto now = Clock::now(); first->first > now) return first->first - now;
    deliver(first->second);
    delayed_.erase(first);
  }
  return std::nullopt;
}

bool FrameSwitch::is_lost(const Cable& cable) {
  return cable.loss > 0 && std::bernoulli_distribution(cable.loss)(random_);
}

FrameSwitch::Clock::duration FrameSwitch::time_on(const Cable& cable) {
  std::uniform_int_distribution<std::int64_t> jitter(0, cable.jitter.count());
  return cable.delay + std::chrono::microseconds(jitter(random_));
}

}  // namespace ddprun::test
