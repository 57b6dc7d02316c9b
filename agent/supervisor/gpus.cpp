#include "agent/supervisor/gpus.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "agent/core/leader_config.h"
#include "agent/process/process_stacks.h"
#include "agent/process/worker_facts.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kMoment = 1s;              // an answer of a status may be so old
constexpr auto kStatusLimit = 40ms;       // a status may take 100 ms
constexpr auto kFailureLimit = 1s;        // what a GPU says of a failure is awaited for so long
constexpr auto kMemoryLimit = 2s;         // a round waits for an answer
constexpr auto kMemoryLookAgain = 100ms;  // the driver does not tell when memory is free
constexpr auto kHangs = 2s;               // an answer that takes longer may never come
constexpr auto kXidWait = 60s;
constexpr auto kXidPause = 1s;  // after an error
constexpr int kXidTroublesMax = 30;

std::string device_number(const Job& job, int local_rank) {
  constexpr std::string_view kCuda = "cuda:";
  const std::string device = device_of(job, local_rank);
  return device.starts_with(kCuda) ? device.substr(kCuda.size()) : device;
}

RankDevice rank_device(const Job& job, int local_rank, pid_t pid) {
  const bool names_gpus = !job.visible_devices_of.empty() ||
                          !value_or_empty(job.environment, "CUDA_VISIBLE_DEVICES").empty();
  return {pid, device_number(job, local_rank), names_gpus ? -1 : local_rank};
}

// Also in a container that has one.
bool has_nvidia_driver() { return ::access("/dev/nvidiactl", F_OK) == 0; }

// Whether its words say this.
bool says(const rdzv::WorkerFailure& failure, bool (*what)(std::string_view)) {
  return what(failure.message) || std::ranges::any_of(failure.stderr_tail, what);
}

// As the kernel numbers the first one, since Linux 3.8.
bool is_first_pid_namespace() {
  std::array<char, 64> text{};
  const ssize_t size = ::readlink("/proc/self/ns/pid", text.data(), text.size());
  return size > 0 &&
         std::string_view(text.data(), static_cast<std::size_t>(size)) == "pid:[4026531836]";
}

}  // namespace

// Never unloaded: a thread may hang in it for ever. On the thread of samples; its `nvml` on that of Xids, too, once a look
// says that it tells some.
struct Gpus::Driver {
  Nvml* nvml = nullptr;
  bool is_tried = false;
  bool tells_xids = false;

  Look look() {
    if (!std::exchange(is_tried, true)) {
      nvml = Nvml::load().release();
      tells_xids = nvml != nullptr && nvml->subscribe_to_xids();
    }
    Look look;
    if (nvml == nullptr) return look;
    look.gpus = nvml->samples();
    const std::vector<pid_t> tree = process_tree(::getpid());
    look.own = {tree.begin(), tree.end()};
    look.are_pids_known = are_pids_known(look.gpus, look.own, is_first_pid_namespace());
    look.tells_xids = tells_xids;
    return look;
  }
};

Gpus::Gpus(const AgentParts& parts, const WorkerView& workers)
    : parts_(parts),
      workers_(workers),
      driver_(std::make_shared<Driver>()),
      calls_(parts.io.get_executor(), "ddprun-gpus"),
      xid_calls_(parts.io.get_executor(), "ddprun-xids"),
      xid_pause_(parts.io),
      look_again_(parts.io) {
  const std::string device = device_number(parts.job, 0);
  are_used_ = !device.empty() && device != "-1" && device != "NoDevFiles";
}

// A worker of this node has a GPU open. It may have many other files open, too.
void Gpus::look_whether_used() {
  if (are_used_ || looks_whether_used_ || !has_nvidia_driver()) return;
  looks_whether_used_ = true;
  looked_whether_used_at_ = Clock::now();
  std::vector<pid_t> pids;
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank) {
    if (const pid_t pid = workers_.pid(local_rank); pid != 0) pids.push_back(pid);
  }
  calls_.run<bool>(
      [pids] { return std::ranges::any_of(pids, [](pid_t pid) { return has_gpu(pid); }); },
      [this](bool is_one_open) {
        looks_whether_used_ = false;
        if (!is_one_open) return;
        are_used_ = true;
        sample(kFailureLimit, [](bool) {});
      });
}

void Gpus::on(const WorkerEvent& event) {
  if (const auto* started = std::get_if<worker_event::Started>(&event.what)) {
    wait_.dead = started->pids;
    listed_.clear();
    xids_.clear();
    at_round_.clear();
    is_round_new_ = true;
    if (are_used_) sample(kFailureLimit, [](bool) {});
  } else if (const auto* replaced = std::get_if<worker_event::Replaced>(&event.what)) {
    if (replaced->newcomer != 0) wait_.dead.push_back(replaced->newcomer);
  } else if (std::holds_alternative<worker_event::Stepped>(event.what)) {
    are_used_ ? sample(kFailureLimit, [](bool) {}) : look_whether_used();
  }
}

// ---- asking

// Each gets the answer to a question that was asked after its call.
void Gpus::sample(std::chrono::milliseconds limit, std::function<void(bool)> done) {
  if (!trouble().empty()) return done(false);
  const auto waiter = std::make_shared<Waiter>(parts_.io);
  waiter->done = std::move(done);
  waiters_.push_back(waiter);
  waiter->limit.arm(limit, [this, its = std::weak_ptr(waiter)] {
    const auto late = its.lock();
    std::erase(waiters_, late);
    late->done(false);
  });
  if (!asked_at_) ask();
}

void Gpus::ask() {
  asked_at_ = Clock::now();
  for (const auto& each : waiters_) each->is_asked = true;
  calls_.run<Look>([driver = driver_] { return driver->look(); },
                   [this](Look look) {
                     asked_at_.reset();
                     take(std::move(look));
                     const auto answered = std::ranges::stable_partition(
                         waiters_, [](const auto& each) { return !each->is_asked; });
                     const std::vector<std::shared_ptr<Waiter>> now(answered.begin(),
                                                                    answered.end());
                     waiters_.erase(answered.begin(), answered.end());
                     if (!waiters_.empty()) ask();
                     for (const auto& each : now) {
                       each->limit.cancel();
                       each->done(true);
                     }
                   });
}

void Gpus::take(Look look) {
  last_ = std::move(look);
  last_at_ = Clock::now();
  if (std::exchange(is_round_new_, false)) at_round_ = last_.gpus;
  place_ranks();
  for (const GpuSample& gpu : last_.gpus) {
    for (const GpuProcess& each : gpu.processes) {
      if (each.pid != ::getpid() && last_.own.contains(each.pid)) listed_.insert(each.pid);
    }
  }
  if (last_.tells_xids && !std::exchange(has_watched_, true)) await_xid();
}

void Gpus::place_ranks() {
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank) {
    const pid_t pid = workers_.pid(local_rank);
    if (pid == 0) continue;
    const auto gpu = gpu_of(rank_device(parts_.job, local_rank, pid), last_.gpus);
    if (gpu) gpu_of_rank_[local_rank] = *gpu;
  }
}

void Gpus::await_xid() {
  xid_calls_.run<Nvml::XidAnswer>(
      [nvml = driver_->nvml, is_anew = xid_troubles_ > 0]() -> Nvml::XidAnswer {
        if (is_anew) nvml->subscribe_to_xids();
        return nvml->await_xid(kXidWait);
      },
      [this](const Nvml::XidAnswer& answer) {
        if (answer.xid) note(*answer.xid);
        if (!answer.trouble.empty()) return xids_cannot_be_awaited(answer.trouble);
        xid_troubles_ = 0;
        await_xid();
      });
}

// As when one GPU is lost: the others may have something to say.
void Gpus::xids_cannot_be_awaited(const std::string& trouble) {
  if (++xid_troubles_ < kXidTroublesMax) return xid_pause_.arm(kXidPause, [this] { await_xid(); });
  parts_.log.warn("the Xids of this node's GPUs are not told any more: " + trouble);
}

void Gpus::note(const GpuXid& xid) {
  constexpr std::size_t kXidsKept = 256;
  if (std::ranges::count(xids_, xid) == 0) {
    parts_.log.warn(xid_in_words(xid.xid) + " on GPU " + std::to_string(xid.gpu));
    if (xids_.size() < kXidsKept) xids_.push_back(xid);
  }
}

std::vector<int> Gpus::xids_of(int gpu) const {
  std::vector<int> xids;
  for (const GpuXid& each : xids_) {
    if (each.gpu == gpu) xids.push_back(each.xid);
  }
  return xids;
}

std::optional<std::uint64_t> Gpus::ecc_of(int gpu) const {
  const auto i = static_cast<std::size_t>(gpu);
  if (i >= last_.gpus.size() || i >= at_round_.size()) return std::nullopt;
  const auto& now = last_.gpus[i].ecc;
  const auto& then = at_round_[i].ecc;
  if (!now || !then) return std::nullopt;
  return *now > *then ? *now - *then : 0;
}

std::string Gpus::trouble() const {
  if (!asked_at_ || Clock::now() - *asked_at_ < kHangs) return "";
  const std::string time =
      duration_text(std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - *asked_at_));
  if (!last_at_) return "NVML is being loaded, for " + time + " so far";
  return "NVML has not answered for " + time + ", as when a GPU has fallen off the bus";
}

// ---- status

void Gpus::refresh(std::function<void()> done) {
  const auto is_new = [](const std::optional<Clock::time_point>& at) {
    return at && Clock::now() - *at < kMoment;
  };
  if (!is_new(looked_whether_used_at_)) look_whether_used();
  if (!are_used_ || is_new(last_at_)) return done();
  sample(kStatusLimit, [done = std::move(done)](bool) { done(); });
}

void Gpus::fill(NodeStatus& status) const {
  if (!are_used_) return;
  status.gpu_trouble = trouble();
  if (!last_at_) return;
  status.gpus_age = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - *last_at_);
  for (std::size_t i = 0; i < last_.gpus.size(); ++i) {
    const GpuSample& its = last_.gpus[i];
    GpuStatus gpu{static_cast<int>(i), its.gpu.uuid, its.gpu.pci_address, {}};
    for (const auto& [local_rank, index] : gpu_of_rank_) {
      if (index == gpu.index) gpu.ranks.push_back(workers_.rank_of(local_rank));
    }
    gpu.memory_used = its.memory_used;
    gpu.memory_total = its.memory_total;
    gpu.utilization = its.utilization;
    gpu.temperature = its.temperature;
    gpu.ecc = ecc_of(gpu.index);
    gpu.xids = xids_of(gpu.index);
    gpu.trouble = its.trouble;
    status.gpus.push_back(std::move(gpu));
  }
}

// ---- a worker has failed

void Gpus::explain(rdzv::WorkerFailure& failure) {
  const rdzv::WorkerFailure end = failure;
  are_used_ = are_used_ || says(end, speaks_of_cuda);
  if (!are_used_) return;
  const std::vector<std::string> known = lines_for(end, /*is_fresh=*/false);
  if (!known.empty()) {
    const std::string text = joined(known, "\n");
    parts_.log.warn("rank " + std::to_string(end.rank) + " failed: " + joined(known, "; "));
    failure.message = end.message.empty() ? text : text + "\n" + end.message;
  }
  ++explanations_;
  sample(kFailureLimit, [this, end, known](bool is_fresh) {
    std::vector<std::string> lines;
    if (is_fresh) {
      lines = lines_for(end, is_fresh);
    } else if (const std::string why = why_they_say_nothing(end); !why.empty()) {
      lines = {why};
    }
    std::erase_if(lines, [&](const auto& line) { return std::ranges::count(known, line) > 0; });
    add_remarks(end, lines);
    is_explained();
  });
}

void Gpus::when_explained(std::function<void()> done) {
  if (explanations_ == 0) return done();
  when_explained_ = std::move(done);
}

void Gpus::is_explained() {
  if (--explanations_ == 0 && when_explained_) std::exchange(when_explained_, nullptr)();
}

void Gpus::add_remarks(const rdzv::WorkerFailure& failure, const std::vector<std::string>& lines) {
  constexpr std::size_t kRemarksBytesMax = 4096;
  if (lines.empty()) return;
  const std::string rank = "rank " + std::to_string(failure.rank);
  parts_.log.warn(rank + " failed: " + joined(lines, "; "));
  for (const std::string& line : lines) {
    if (remarks_.size() < kRemarksBytesMax)
      remarks_ += "  gpu         " + rank + ": " + line + "\n";
  }
}

// Where NVML has never answered, only words of CUDA make its silence a fact of the failure.
std::string Gpus::why_they_say_nothing(const rdzv::WorkerFailure& failure) const {
  if (!last_at_ && !says(failure, speaks_of_cuda)) return "";
  const std::string why = trouble();
  return "the GPUs of " + parts_.host + " say nothing: " +
         (!why.empty() ? why
          : last_at_   ? "NVML has not answered within " + duration_text(kFailureLimit)
                       : "NVML is being loaded");
}

// With the last answer, which is from before the failure if it is not fresh.
std::vector<std::string> Gpus::lines_for(const rdzv::WorkerFailure& failure, bool is_fresh) const {
  const auto found = gpu_of_rank_.find(failure.local_rank);
  GpuFailure facts;
  facts.host = parts_.host;
  facts.pid = failure.pid;
  facts.gpu = found != gpu_of_rank_.end()
                  ? found->second
                  : gpu_of(rank_device(parts_.job, failure.local_rank, failure.pid), last_.gpus)
                        .value_or(-1);
  facts.xids = xids_of(facts.gpu);
  if (facts.gpu >= 0 && std::cmp_less(facts.gpu, last_.gpus.size())) {
    facts.ecc = ecc_of(facts.gpu).value_or(0);
    facts.sample = last_.gpus[static_cast<std::size_t>(facts.gpu)];
    facts.is_out_of_memory = is_fresh && says(failure, says_out_of_memory);
  }
  facts.own = last_.own;
  facts.are_pids_known = last_.are_pids_known;
  std::vector<std::string> lines = in_words(facts);
  if (!is_fresh && !trouble().empty()) {
    if (std::string why = why_they_say_nothing(failure); !why.empty()) lines.push_back(why);
  }
  return lines;
}

// ---- before a round

void Gpus::await_memory(std::function<void()> done) {
  look_again_.cancel();
  start_ = std::move(done);
  waits_since_ = Clock::now();
  has_told_wait_ = false;
  wait_.last.reset();
  if (wait_.dead.empty()) {  // it is the first round here
    if (are_used_) {
      sample(kMemoryLimit, [this](bool is_fresh) {
        if (is_fresh) wait_.before_first = last_.gpus;
      });
    }
    return std::exchange(start_, nullptr)();
  }
  if (!are_used_) return std::exchange(start_, nullptr)();
  wait_.gpus.clear();
  for (const auto& [local_rank, gpu] : gpu_of_rank_) wait_.gpus.push_back(gpu);
  look_for_memory();
}

void Gpus::look_for_memory() {
  sample(kMemoryLimit, [this](bool is_fresh) {
    if (!start_) return;
    if (!is_fresh) {
      return memory_is_awaited_no_more(
          "the GPU memory of the workers that have ended is not awaited: NVML does not answer");
    }
    MemoryWait wait = wait_;
    std::ranges::copy_if(listed_, std::back_inserter(wait.dead),
                         [&](int pid) { return !last_.own.contains(pid); });
    const std::string awaited = what_is_awaited(wait, last_.gpus, last_.are_pids_known);
    const auto waited = Clock::now() - waits_since_;
    const std::string time =
        duration_text(std::chrono::duration_cast<std::chrono::seconds>(waited));
    if (awaited.empty()) {
      return memory_is_awaited_no_more(
          has_told_wait_ ? "the GPU memory is free after " + time + "; the workers start" : "");
    }
    if (waited >= MemoryWait::kWaitMax) {
      return memory_is_awaited_no_more("after " + time + " the workers start although " + awaited +
                                       " is still in use");
    }
    if (waited >= MemoryWait::kTellAfter && !std::exchange(has_told_wait_, true)) {
      parts_.log.warn("the next round waits for the GPU memory of workers that have ended: " +
                      awaited);
    }
    wait_.last = last_.gpus;
    look_again_.arm(kMemoryLookAgain, [this] { look_for_memory(); });
  });
}

void Gpus::memory_is_awaited_no_more(const std::string& sentence) {
  if (!sentence.empty()) parts_.log.warn(sentence);
  std::exchange(start_, nullptr)();
}

}  // namespace ddprun::agent
