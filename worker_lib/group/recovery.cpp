#include "worker_lib/group/recovery.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "ddprun/collectives.h"
#include "ddprun/log.h"
#include "ddprun/serialize.h"
#include "rendezvous/common/scheduling.h"
#include "rendezvous/common/signals_blocked.h"
#include "worker_lib/c10d/alone_backend.h"
#include "worker_lib/c10d/client_store.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/torch_compat.h"
#include "worker_lib/group/failure_diagnosis.h"
#include "worker_lib/process/tcp_sockets.h"
#include "worker_lib/process/unwind_tables.h"

namespace ddprun {
namespace {

using detail::Membership;
using Tensors = std::vector<torch::Tensor>;

// From the failure of a call until the agent says what becomes of the round. An agent that hears of a death
// over a network says so sooner, or stops this worker.
constexpr auto kNewsLimit = std::chrono::seconds(30);
// How often sockets are shut that NCCL opens for a group which is not made any more.
constexpr auto kLooksForSockets = std::chrono::milliseconds(10);
// What is noted of the set-up, and between two steps.
constexpr std::size_t kNotedBytesMax = std::size_t{64} << 20;
constexpr std::size_t kNotedCallsMax = 10'000;
constexpr std::size_t kStateBytesMin = 16384;
// By then the optimizer has its state, and what a process takes of its GPU is known.
constexpr int kMeasuredSteps = 2;

// "ddprun/3" in generation 2: "ddprun@2/3".
std::string name_in(const std::string& name, std::uint32_t generation) {
  if (generation == 0) return name;
  const std::size_t end = std::min(name.find('/'), name.size());
  return name.substr(0, end) + "@" + std::to_string(generation) + name.substr(end);
}

// Where ranks say that they know a generation, and that they have come to make its groups.
std::vector<std::string> keys_of(const std::string& name, std::uint32_t generation,
                                 const char* what, int world_size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size; ++rank) {
    keys.push_back(name_in(name, generation) + "/" + what + "/" + std::to_string(rank));
  }
  return keys;
}

void say(c10d::Store& store, const std::vector<std::string>& keys, int rank) {
  store.set(keys[static_cast<std::size_t>(rank)], std::vector<std::uint8_t>{1});
}

std::string text_of_gpu_failure(const std::exception& error) {
  return "its GPU has failed (" + error_line(error) + ")";
}

// Empty: it is another failure.
std::string gpu_failure_in(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::AcceleratorError& error) {
    return text_of_gpu_failure(error);
  } catch (...) {
    return {};
  }
}

// Groups are made anew while NCCL frees the communicators before. Whether that is safe is not known from a GPU yet.
bool are_freed_later() {
  const char* const text = std::getenv("DDPRUN_NCCL_FREE_LATER");
  return text != nullptr && std::string_view(text) == "1";
}

// No further generation mends it.
class CannotRecover : public Failure {
 public:
  using Failure::Failure;
};

std::size_t bytes_in(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.layout() == torch::kStrided) bytes += tensor.nbytes();
  }
  return bytes;
}

std::string contents_of(const Tensors& tensors) {
  std::string contents;
  contents.reserve(bytes_in(tensors));
  for (const torch::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.layout() != torch::kStrided) continue;
    const torch::Tensor dense = tensor.detach().cpu().contiguous();
    contents.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  return contents;
}

void put_back(std::string_view contents, const Tensors& tensors) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.layout() != torch::kStrided) continue;
    torch::Tensor dense = torch::empty(tensor.sizes(), tensor.options().device(torch::kCPU));
    std::copy_n(contents.begin(), dense.nbytes(), static_cast<char*>(dense.mutable_data_ptr()));
    contents.remove_prefix(dense.nbytes());
    tensor.detach().copy_(dense);
  }
}

bool is_of_connection(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const GroupLost&) {
    return true;
  } catch (const std::exception& error) {
    return ddprun::is_of_connection(error);
  } catch (...) {
    return false;
  }
}

// In a group that was just made, past all notes.
std::vector<recovery::Place> all_gather(c10d::ProcessGroup& group, const recovery::Place& mine) {
  static_assert(sizeof(mine) == 4 * sizeof(std::int64_t));
  torch::Tensor input = torch::empty({4}, torch::kInt64);
  std::memcpy(input.mutable_data_ptr(), &mine, sizeof(mine));
  torch::Tensor output = torch::empty({group.getSize() * input.numel()}, torch::kInt64);
  compat::all_gather_single(group, output, input, {})->wait();
  std::vector<recovery::Place> all(static_cast<std::size_t>(group.getSize()));
  std::memcpy(all.data(), output.const_data_ptr(), output.nbytes());
  return all;
}

}  // namespace

Recovery::Recovery(AgentLink& link, ProcessGroupOptions options, bool is_prepared, Hooks hooks)
    : link_(link),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      state_(is_prepared ? recovery::State(recovery::Prepared{}) : recovery::SetUp{}) {
  if (!is_prepared) return;
  // The memory of the worker whose place this process may take, with what its set-up was told.
  if (const char* const text = std::getenv(link::kMirrorVariable)) {
    const int number = std::atoi(text);
    if (!is_memory_named(number, Mirror::kName)) {
      throw Failure(ErrorCode::kClosed,
                    "the program has closed the memory of the worker whose place "
                    "it prepares for");
    }
    setup_ = from_bytes<std::vector<std::string>>(Mirror::open(rdzv::UniqueFd(number))->setup());
    std::ranges::reverse(setup_);
  }
}

Recovery::~Recovery() { end(); }

void Recovery::leave() { tell(recovery::Left{}); }

void Recovery::end() {
  tell(recovery::Ended{});
  if (thread_.joinable()) {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  ending_.reset();
  freed_later_.clear();
  const std::scoped_lock lock(mutex_);
  current_.clear();
}

recovery::Outcome Recovery::ask(const recovery::Event& event) noexcept {
  recovery::Outcome outcome = recovery::step(state_, event);
  state_ = outcome.state;
  if (is_in<recovery::Off>()) {
    const std::scoped_lock lock(mutex_);
    is_off_ = true;
  }
  return outcome;
}

// What run() does with a call is not among these actions.
void Recovery::perform(const recovery::Outcome& outcome) {
  for (const recovery::Action& action : outcome.actions) {
    if (std::holds_alternative<recovery::TakePlace>(action)) {
      take_place();
    } else if (std::holds_alternative<recovery::ForgetCalls>(action)) {
      results_.clear();
      noted_bytes_ = 0;
    } else if (const auto* note = std::get_if<recovery::NoteEntry>(&action)) {
      std::string entry;
      parts_->append_to(entry);
      write(note->step, Mirror::Moment::kEntry, entry);
    } else if (const auto* restore = std::get_if<recovery::Restore>(&action)) {
      const auto moment = restore->moment == recovery::Moment::kEntry ? Mirror::Moment::kEntry
                                                                      : Mirror::Moment::kEffect;
      parts_->restore(mirror_->read(restore->step, moment).value(), restore->with_replicated);
    } else if (const auto* take = std::get_if<recovery::TakeState>(&action)) {
      take_state(*take);
    } else if (const auto* regrouped = std::get_if<recovery::TellRegrouped>(&action)) {
      link_.committed(regrouped->committed, 0);
      link_.regrouped(generation_);
    } else if (const auto* committed = std::get_if<recovery::TellCommitted>(&action)) {
      link_.committed(committed->committed, generation_);
    } else if (std::holds_alternative<recovery::TellRefused>(action)) {
      setup_.clear();
      link_.refuse_recovery(outcome.why, was_wrong_);
      log::debug("this rank cannot be replaced in place: ", outcome.why);
    } else if (std::holds_alternative<recovery::Withdraw>(action)) {
      link_.withdraw_recovery();
    } else if (const auto* fail = std::get_if<recovery::Fail>(&action)) {
      throw CannotRecover(fail->is_of_program ? ErrorCode::kProtocol : ErrorCode::kUnavailable,
                          outcome.why);
    }
  }
}

void Recovery::make(const std::shared_ptr<Membership>& membership) {
  if (!is_in_set_up()) refuse("the program makes a group after its set-up");
  groups_.push_back(membership);
  if (groups_.size() == 1) {
    name_ = membership->name;
    rank_ = membership->rank;
    world_size_ = membership->size();
  }
  if (is_prepared()) {
    membership->group = c10::make_intrusive<c10d::ProcessGroup>(
        c10::intrusive_ptr<c10d::Store>(), membership->rank, membership->size());
    membership->group->setGroupName(membership->name);
    const bool is_over_shm =
        options_.backend == Backend::kShm && options_.is_one_node && membership->size() > 1;
    for (const c10::DeviceType each : {c10::DeviceType::CPU, options_.device.type()}) {
      const bool is_over_nccl = options_.backend == Backend::kNccl && each != c10::DeviceType::CPU;
      const char* const name = is_over_nccl  ? "nccl (alone)"
                               : is_over_shm ? "shm (alone)"
                                             : "gloo (alone)";
      membership->group->setBackend(
          each, c10d::ProcessGroup::BackendType::CUSTOM,
          c10::make_intrusive<AloneBackend>(membership->rank, membership->size(), name));
    }
    membership->group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    return;
  }
  membership->group = membership->maker->make(name_in(membership->name, generation_),
                                              membership->rank, membership->global_ranks);
  if (membership->maker->has_fallen_back()) {
    refuse("its ranks could not make shared memory, and use Gloo instead");
  }
  const std::scoped_lock lock(mutex_);
  current_.push_back(membership->group);
}

std::shared_ptr<Membership> Recovery::whole() const {
  auto membership = groups_.empty() ? nullptr : groups_.front().lock();
  if (!membership) throw Failure(ErrorCode::kClosed, "this rank has left the group");
  return membership;
}

void Recovery::refuse(const std::string& why, bool nor_later) {
  was_wrong_ = was_wrong_ || nor_later;
  tell(recovery::Refused{why});
}

// ---- calls outside of steps

bool Recovery::is_on_its_thread() const {
  return std::this_thread::get_id() == its_thread_ ||
         torch::autograd::get_current_graph_task_id() >= 0;
}

void Recovery::refuse_calls_of_other_threads() {
  if (has_other_threads_) refuse("a thread beside that of its steps makes calls");
}

bool Recovery::records(bool is_async) {
  if (!is_on_its_thread()) {
    has_other_threads_ = true;
    return false;
  }
  refuse_calls_of_other_threads();
  if (unrecorded_ > 0) return false;
  if (is_in<recovery::Prepared>()) return true;
  if (!is_in<recovery::SetUp>()) return is_outside_step();
  if (is_async) setup_bytes_ = kNotedBytesMax;
  if (setup_bytes_ < kNotedBytesMax && setup_.size() < kNotedCallsMax) return true;
  setup_.clear();  // a program that does not come to its loop of steps, or one without such a loop
  setup_bytes_ = kNotedBytesMax;
  return false;
}

namespace {

// Of a call whose result every rank knows for itself alone.
constexpr char kUnknown[] = "?";

void replay(std::string_view result, const Tensors& tensors, const char* name) {
  if (result == kUnknown) {
    throw Failure(ErrorCode::kUnavailable,
                  std::string("no other rank knows what ") + name + " gave to the one before");
  }
  result.remove_prefix(1);
  if (result.size() != bytes_in(tensors)) {
    throw Failure(
        ErrorCode::kProtocol,
        "this process was to take a rank's place and makes other calls than that one did (" +
            std::string(name) + "): is its program the same each time it runs?");
  }
  put_back(result, tensors);
}

}  // namespace

void Recovery::run(const std::shared_ptr<Membership>& membership, const char* name,
                   const Tensors& kept, const detail::Operation::Begin& begin,
                   const Results& results) {
  const auto make_call = [&] {
    is_in_call_ = true;
    const auto over = c10::make_scope_exit([this] { is_in_call_ = false; });
    detail::Operation(membership, name, kept, begin, nullptr, std::chrono::milliseconds::zero(),
                      /*is_blocking=*/true)
        .wait();
  };
  const auto result = [&] { return "=" + contents_of(results.tensors); };
  const std::string before = is_outside_step() ? contents_of(results.tensors) : std::string();
  for (;;) {
    if (is_outside_step() && has_news()) recover();
    const recovery::Outcome outcome = ask(recovery::CallBegins{name});
    perform(outcome);
    const recovery::Action& action = outcome.actions.front();
    if (std::holds_alternative<recovery::ReplaySetUpCall>(action)) {
      if (setup_.empty()) {
        refuse(std::string("its set-up needs the other ranks' answer (") + name +
               "), which its worker did not need or which was too large to keep");
      }
      replay(setup_.back(), results.tensors, name);
      return setup_.pop_back();
    }
    if (const auto* known = std::get_if<recovery::ReplayCall>(&action)) {
      return replay(results_.at(static_cast<std::size_t>(known->index)), results.tensors, name);
    }
    try {
      make_call();
      break;
    } catch (const GroupLost&) {
      if (!await_news(generation_)) give_up(std::current_exception());
    }
    recover();
    put_back(before, results.tensors);
  }
  if (is_in<recovery::SetUp>()) {
    setup_bytes_ += bytes_in(results.tensors);
    if (setup_bytes_ < kNotedBytesMax) setup_.push_back(result());
  } else {
    noted_bytes_ += bytes_in(results.tensors);
    const bool is_known = results.are_equal_everywhere && noted_bytes_ < kNotedBytesMax;
    results_.push_back(is_known ? result() : kUnknown);
  }
  tell(recovery::CallOver{});
}

// ---- steps

void Recovery::write(std::int64_t step, Mirror::Moment moment, const std::string& bytes) {
  if (mirror_->write(step, moment, bytes)) return;
  mirror_ = mirror_->larger(step, 2 * bytes.size());
  mirror_->write(step, moment, bytes);
  link_.send_mirror(mirror_->descriptor());
}

void Recovery::before_call(CallKind kind) {
  if (!is_on_its_thread()) {
    has_other_threads_ = true;
    return;
  }
  if (kind == CallKind::kCaptured) {
    return refuse("its step is captured in a CUDA graph, whose calls cannot be ended");
  }
  if (kind == CallKind::kQueued) {
    if (has_news()) {
      throw GroupLost(ErrorCode::kUnavailable, "a rank was lost, and the groups are broken");
    }
    has_queued_ = true;
    const std::int64_t backward = torch::autograd::get_current_graph_task_id();
    if (backward >= 0) {
      // What is given with its first gradients is given with all: to read it from the GPU waits for what is queued there.
      if (backward_.exchange(backward) == backward) return;
      if (!is_in_set_up()) await_at_end_of_backward();
    }
  }
  if (is_between_steps() && !is_in_call_) {
    refuse("the program makes calls between its steps that do not go through ddprun::Group");
  }
  const auto* in_step = std::get_if<recovery::InStep>(&state_);
  if (in_step == nullptr) return;
  scratch_.clear();
  parts_->append_to(scratch_);
  if (scratch_ == written_) return;
  write(in_step->committed, Mirror::Moment::kEffect, scratch_);
  std::swap(written_, scratch_);
}

// After the callbacks that are queued so far: in its own c10d's reducer has the stream await the gradients.
void Recovery::await_at_end_of_backward() {
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.queue_callback(
      [this, &engine] { engine.queue_callback([this] { await_queued_calls(); }); });
}

void Recovery::await_queued_calls() {
  if (is_in_set_up() || is_in<recovery::Off>() || !has_queued_.exchange(false)) return;
  try {
    if (!queued_) queued_.emplace(options_.device.type());
    queued_->record(c10::impl::VirtualGuardImpl(options_.device.type()).getStream(options_.device));
    queued_->synchronize();
  } catch (const c10::Error& error) {
    fail_with_gpu(error);
  }
  if (has_news()) {
    throw GroupLost(ErrorCode::kUnavailable, "a rank was lost before a call over NCCL was done");
  }
  const auto& diagnosis = whole()->diagnosis;
  if (diagnosis && diagnosis->is_broken()) throw diagnosis->failure_of_broken();
}

void Recovery::await_device() {
  try {
    c10::impl::VirtualGuardImpl(options_.device.type()).synchronizeDevice(options_.device.index());
  } catch (const c10::Error& error) {
    fail_with_gpu(error);
  }
}

// Each call of the context is this error from now on.
void Recovery::fail_with_gpu(const std::exception& error) {
  const std::string why = text_of_gpu_failure(error);
  refuse(why);
  throw CannotRecover(ErrorCode::kUnavailable, why);
}

bool Recovery::has_stepped() const {
  return is_in<recovery::InStep>() && parts_->version() != version_at_entry_;
}

void Recovery::end_lost_step() const {
  if (!is_in<recovery::InStep>() || !has_news() || has_stepped()) return;
  throw GroupLost(ErrorCode::kUnavailable, "a rank was lost in this step, which is made again");
}

void Recovery::join(RecoverableState& parts, const std::function<void()>& warm_up) {
  const bool is_standby = is_in<recovery::Prepared>();
  if (!is_in_set_up()) return tell(recovery::Joined{});
  parts_ = &parts;
  if (!is_standby && !can_be_interrupted(*whole()->group)) {
    return refuse("calls over this Gloo, linked in another way than usual, cannot be ended");
  }
  link_.hold_death_lock();
  if (is_standby) {
    if (warm_up) {
      const auto alone = unrecorded(this);
      warm_up();
    }
  } else {
    std::string now;
    parts.append_to(now);
    const std::string setup = to_bytes(setup_);
    setup_.clear();
    mirror_ = Mirror::make(std::max(2 * now.size(), kStateBytesMin), setup);
    read_unwind_tables_ahead();  // GroupLost comes through all of LibTorch
  }
  tell(recovery::Joined{});
  stop_ = rdzv::UniqueFd(::eventfd(0, EFD_CLOEXEC));
  stop_joining_ = rdzv::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_ || !stop_joining_) throw Failure(error_from_errno(errno, "an eventfd"));
  hooks_.hears_agent();
  {
    const AllSignalsBlocked blocked;
    thread_ = std::thread([this, diagnosis = whole()->diagnosis] { listen(*diagnosis); });
  }
  if (is_standby) {
    tell(recovery::Placed{});
    recover();
  }
  if (options_.device.is_cuda()) note_gpu(/*is_known=*/false);
  link_.offer_recovery(mirror_->descriptor());
}

void Recovery::note_gpu(bool is_known) {
  const GpuMemory memory = memory_of_gpu(options_.device.index());
  link_.note_gpu(memory.id, static_cast<std::uint32_t>(options_.device.index()), memory.free_bytes,
                 is_known ? memory.used_bytes : 0);
}

void Recovery::step(const std::function<void()>& f) {
  refuse_calls_of_other_threads();
  if (!is_outside_step()) return f();
  if (has_news()) recover();
  tell(recovery::StepBegins{});
  if (!is_in<recovery::InStep>()) return;  // it is committed already
  for (;;) {
    written_.clear();
    version_at_entry_ = parts_->version();
    try {
      f();
      break;
    } catch (...) {
      const std::exception_ptr thrown = std::current_exception();
      if (is_in<recovery::Off>()) throw;
      if (const std::string why = gpu_failure_in(thrown); !why.empty()) {
        refuse(why);
        throw;
      }
      if (!is_of_connection(thrown) && !has_news()) {
        tell(recovery::StepThrew{});
        throw;
      }
      if (!await_news(generation_)) give_up(thrown);
    }
    recover();
    if (!is_in<recovery::InStep>()) return;  // the other ranks had committed it
  }
  tell(recovery::StepOver{});
  if (steps_made_ == kMeasuredSteps || !options_.device.is_cuda()) return;
  if (++steps_made_ == kMeasuredSteps) note_gpu(/*is_known=*/true);
}

// It cannot be recovered from: the failure that names who is missing.
void Recovery::give_up(const std::exception_ptr& thrown) {
  leave();
  const auto membership = whole();
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    if (!membership->diagnosis || !is_of_connection(thrown)) throw;
    throw membership->diagnosis->explain(membership->global_ranks, error);
  }
}

// ---- what the agent says

bool Recovery::has_news() const {
  const std::scoped_lock lock(mutex_);
  return wanted_generation_ > generation_ && !is_broken_;
}

bool Recovery::await_news(std::uint32_t broken) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kNewsLimit, [&] { return is_broken_ || wanted_generation_ > broken; });
  return !is_broken_ && wanted_generation_ > broken;
}

void Recovery::listen(FailureDiagnosis& diagnosis) {
  ::pthread_setname_np(::pthread_self(), "ddprun-link");
  rdzv::wake_at_once();
  for (;;) {
    const auto news = link_.await_group_news(stop_.get(), wanted_generation());
    const bool is_broken = !news || news->broken;
    std::unique_lock lock(mutex_);
    if (is_broken) {
      is_broken_ = true;
    } else {
      wanted_generation_ = news->regroup->generation;
      interrupt(current_);
      end_calls_over_nccl();
    }
    ::eventfd_write(stop_joining_.get(), 1);
    if (auto* const store = dynamic_cast<ClientStore*>(joining_store_.get())) store->shut_down();
    changed_.notify_all();
    while (sockets_before_) {  // NCCL does not tell which it opens, and when
      shut_down_tcp_sockets_except(*sockets_before_);
      changed_.wait_for(lock, kLooksForSockets);
    }
    if (!is_broken) continue;
    if (options_.backend == Backend::kNccl && news) {
      for (const auto& group : current_) diagnosis.abort_when_broken(group);
      lock.unlock();
      diagnosis.report_death(news->broken->rank);
    }
    return;
  }
}

// With the mutex held; idempotent. Not where nothing would look at what is left by an ended call.
void Recovery::end_calls_over_nccl() {
  if (options_.backend != Backend::kNccl || is_off_ || ending_ || current_.empty()) return;
  ending_ = std::make_unique<NcclEnding>(
      current_, [this, store = c10::intrusive_ptr<c10d::Store>(),
                 told = std::uint32_t{0}](std::chrono::milliseconds limit) mutable {
        const std::uint32_t wanted = wanted_generation();
        const auto keys = keys_of(name_, wanted, "known", world_size_);
        try {
          if (told != wanted) {
            store = hooks_.connect();
            say(*store, keys, rank_);
            told = wanted;
          }
          store->wait(keys, limit);
          return true;
        } catch (const std::exception&) {  // not yet; or the store is gone with the agent
          return false;
        }
      });
}

// ---- the groups are made anew

void Recovery::recover() {
  const auto begun = std::chrono::steady_clock::now();
  auto made = begun;
  recovery::Outcome resumed;
  for (;;) {
    const std::uint32_t wanted = wanted_generation();
    tell(recovery::Regroup{.has_stepped = has_stepped()});
    try {
      make_groups(wanted);
      made = std::chrono::steady_clock::now();
      resumed = agree();
      break;
    } catch (const UsageError&) {
      leave();
      throw;
    } catch (const CannotRecover&) {
      leave();
      throw;
    } catch (const std::exception&) {  // another rank was lost meanwhile
      // Not once more in the same generation: what the ranks have left of it in the store would mislead.
      if (!await_news(wanted)) give_up(std::current_exception());
    }
  }
  using Milliseconds = std::chrono::duration<double, std::milli>;
  log::debug("rank ", whole()->rank, " has regrouped in generation ", generation_, " after ",
             Milliseconds(made - begun).count(), " ms for the groups and ",
             Milliseconds(std::chrono::steady_clock::now() - made).count(), " ms for the state");
  perform(resumed);
}

void Recovery::make_groups(std::uint32_t generation) {
  const auto store = hooks_.connect();
  std::vector<std::shared_ptr<Membership>> members;
  for (const auto& each : groups_) {
    if (auto membership = each.lock(); membership && membership->group) {
      members.push_back(std::move(membership));
    }
  }
  ProcessGroupOptions options = options_;
  options.may_fall_back = false;
  options.stop_joining = stop_joining_.get();
  options.before_nccl = [this, generation] { note_that_nccl_connects(generation); };
  const auto maker = std::make_shared<GroupMaker>(store, std::move(options));
  {
    const std::scoped_lock lock(mutex_);
    eventfd_t stale = 0;
    ::eventfd_read(stop_joining_.get(), &stale);
    // Those that still wait in the old ones end, too, also where only this rank has failed.
    interrupt(current_);
    end_calls_over_nccl();
    joining_store_ = store;
    if (is_broken_ || wanted_generation_ > generation) {
      throw Failure(ErrorCode::kClosed, "a newer generation has begun");
    }
  }
  meet(*store, generation);
  const auto is_over = c10::make_scope_exit([this] { note_that_nccl_is_connected(); });
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> made;
  made.reserve(members.size());
  for (const auto& membership : members) {
    made.push_back(maker->make(name_in(membership->name, generation), membership->rank,
                               membership->global_ranks));
    note_that_nccl_is_connected();
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i]->group = made[i];
    members[i]->maker = maker;
  }
  generation_ = generation;
  const std::scoped_lock lock(mutex_);
  current_ = std::move(made);
  if (wanted_generation_ > generation) {
    throw Failure(ErrorCode::kClosed, "a newer generation has begun");
  }
}

// None of these groups is begun before all ranks are there, since a rank may die meanwhile.
void Recovery::meet(c10d::Store& store, std::uint32_t generation) {
  const auto known = keys_of(name_, generation, "known", world_size_);
  const auto met = keys_of(name_, generation, "met", world_size_);
  const bool is_over_nccl = options_.backend == Backend::kNccl;
  if (is_over_nccl) {
    say(store, known, rank_);
    await_device();
    has_queued_ = false;
    if (ending_) ending_->note_idle();
  }
  say(store, met, rank_);
  store.wait(met);  // if a rank does not come, the agent ends the round (replace_timeout)
  if (!is_over_nccl) return;
  std::erase_if(freed_later_, [](const auto& each) { return each->is_freed(); });
  const bool is_later = are_freed_later();
  if (ending_) is_later ? ending_->free_later() : ending_->free();
  std::unique_ptr<NcclEnding> freed;
  const std::scoped_lock lock(mutex_);
  freed = std::move(ending_);
  if (is_later && freed) freed_later_.push_back(std::move(freed));
  current_.clear();
}

void Recovery::note_that_nccl_connects(std::uint32_t generation) {
  const std::scoped_lock lock(mutex_);
  if (is_broken_ || wanted_generation_ > generation) {
    throw Failure(ErrorCode::kClosed, "a newer generation has begun");
  }
  sockets_before_ = tcp_sockets();
}

void Recovery::note_that_nccl_is_connected() {
  const std::scoped_lock lock(mutex_);
  sockets_before_.reset();
  changed_.notify_all();
}

recovery::Outcome Recovery::agree() {
  const auto membership = whole();
  c10d::ProcessGroup& group = *membership->group;
  tell(recovery::Met{all_gather(group, place_of(std::get<recovery::Regrouping>(state_))),
                     group.getRank()});
  return ask(recovery::Took{static_cast<std::int64_t>(results_.size()), look_into_mirror()});
}

void Recovery::take_state(const recovery::TakeState& take) {
  const bool is_donor = whole()->group->getRank() == take.donor;
  results_ = from_bytes<std::vector<std::string>>(
      parts_->share(take.donor, take.needs_it, is_donor ? to_bytes(results_) : ""));
  noted_bytes_ = 0;
  for (const std::string& result : results_) noted_bytes_ += result.size();
}

recovery::InMirror Recovery::look_into_mirror() const {
  const auto& taking = std::get<recovery::Taking>(state_);
  if (!std::holds_alternative<recovery::Newcomer>(taking.where)) return {};
  const auto has = [&](std::int64_t step, Mirror::Moment moment) {
    return mirror_->read(step, moment).has_value();
  };
  const std::int64_t committed = taking.at.committed;
  return {.has_entry = has(committed, Mirror::Moment::kEntry),
          .has_last_entry = has(committed - 1, Mirror::Moment::kEntry),
          .has_last_effect = has(committed - 1, Mirror::Moment::kEffect)};
}

// The streams were held back until here.
void Recovery::take_place() {
  AgentLink::Place place = link_.await_place();
  if (options_.device.is_cuda()) await_device();  // may have failed with the process before
  std::fflush(nullptr);
  ::dup2(place.out.get(), STDOUT_FILENO);
  ::dup2(place.err.get(), STDERR_FILENO);
  mirror_ = Mirror::open(std::move(place.mirror));
  setup_.clear();
  hooks_.placed(hooks_.connect());
  for (const auto& each : groups_) {
    if (const auto membership = each.lock()) membership->diagnosis = whole()->diagnosis;
  }
  wanted_generation_ = place.generation;
}

}  // namespace ddprun
