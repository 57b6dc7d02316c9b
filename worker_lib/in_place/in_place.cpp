#include "worker_lib/in_place/in_place.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/worker_abi/untried_arch.h"
#include "worker_lib/c10d/gloo_interrupt.h"
#include "worker_lib/process/agent_link.h"
#include "worker_lib/process/crc32c.h"
#include "worker_lib/process/mirror.h"
#include "worker_lib/process/unwind_tables.h"
#include "worker_lib/recovery_core/recovery_core.h"

using namespace ddprun;

namespace {

thread_local std::string why_last;

template <typename Function>
auto guarded(Function f, decltype(f()) failed) noexcept -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    why_last = error.what();
  }
  return failed;
}

struct Names {
  const char* operator()(const recovery::SetUp&) const { return "SetUp"; }
  const char* operator()(const recovery::Prepared&) const { return "Prepared"; }
  const char* operator()(const recovery::Entering&) const { return "Entering"; }
  const char* operator()(const recovery::Between&) const { return "Between"; }
  const char* operator()(const recovery::InStep&) const { return "InStep"; }
  const char* operator()(const recovery::Regrouping&) const { return "Regrouping"; }
  const char* operator()(const recovery::Taking&) const { return "Taking"; }
  const char* operator()(const recovery::Off&) const { return "Off"; }
};

struct Flat {
  ddprun_action operator()(const recovery::TakePlace&) const { return {"TakePlace", {}}; }
  ddprun_action operator()(const recovery::MakeCall&) const { return {"MakeCall", {}}; }
  ddprun_action operator()(const recovery::ReplaySetUpCall&) const {
    return {"ReplaySetUpCall", {}};
  }
  ddprun_action operator()(const recovery::ReplayCall& its) const {
    return {"ReplayCall", {its.index}};
  }
  ddprun_action operator()(const recovery::ForgetCalls&) const { return {"ForgetCalls", {}}; }
  ddprun_action operator()(const recovery::NoteEntry& its) const {
    return {"NoteEntry", {its.step}};
  }
  ddprun_action operator()(const recovery::Restore& its) const {
    return {"Restore", {its.step, its.moment == recovery::Moment::kEffect, its.with_replicated}};
  }
  ddprun_action operator()(const recovery::TakeState& its) const {
    return {"TakeState", {its.donor, its.needs_it}};
  }
  ddprun_action operator()(const recovery::TellRegrouped& its) const {
    return {"TellRegrouped", {its.committed}};
  }
  ddprun_action operator()(const recovery::TellCommitted& its) const {
    return {"TellCommitted", {its.committed}};
  }
  ddprun_action operator()(const recovery::TellRefused&) const { return {"TellRefused", {}}; }
  ddprun_action operator()(const recovery::Withdraw&) const { return {"Withdraw", {}}; }
  ddprun_action operator()(const recovery::Fail& its) const {
    return {"Fail", {its.is_of_program}};
  }
};

std::vector<recovery::Place> places_of(const ddprun_place* places, std::size_t count) {
  std::vector<recovery::Place> all;
  for (std::size_t rank = 0; rank < count; ++rank) {
    const ddprun_place& its = places[rank];
    all.push_back(
        {static_cast<recovery::Holds>(its.holds), its.committed, its.calls, its.is_in_step});
  }
  return all;
}

Mirror::Moment moment_of(int is_effect) {
  return is_effect != 0 ? Mirror::Moment::kEffect : Mirror::Moment::kEntry;
}

std::size_t copy(const std::string& from, char* to, std::size_t bytes) {
  std::copy_n(from.data(), std::min(bytes, from.size()), to);
  return from.size();
}

}  // namespace

struct ddprun_core {
  recovery::State state;
  std::vector<ddprun_action> actions;

  int tell(const recovery::Event& event) {
    return guarded(
        [&] {
          recovery::Outcome outcome = recovery::step(state, event);
          state = outcome.state;
          why_last = std::move(outcome.why);
          actions.clear();
          for (const auto& each : outcome.actions) actions.push_back(std::visit(Flat{}, each));
          return static_cast<int>(actions.size());
        },
        -1);
  }
};

struct ddprun_mirror {
  std::unique_ptr<Mirror> its;
};

struct ddprun_link {
  std::unique_ptr<AgentLink> its;
};

extern "C" {

const char* ddprun_why() { return why_last.c_str(); }

std::uint32_t ddprun_stream_sum(const char* bytes, std::size_t size) {
  return stream_sum({bytes, size});
}

const char* ddprun_why_untried() {
  static const std::string why = why_untried_arch("replacement", std::getenv(kUntriedArchVariable));
  return why.c_str();
}

int ddprun_can_interrupt_gloo() { return detail::can_interrupt_gloo() ? 1 : 0; }
void ddprun_interrupt_gloo(const char* why) { detail::interrupt_gloo(why); }
const std::uint64_t* ddprun_gloo_calls() { return detail::gloo_calls(); }
const std::uint64_t* ddprun_gloo_failures() { return detail::gloo_failures(); }
void ddprun_read_unwind_tables_ahead() { read_unwind_tables_ahead(); }

int ddprun_plan(const ddprun_place* places, std::size_t count, int* needs) {
  const auto decided = recovery::plan(places_of(places, count));
  const auto* const plan = std::get_if<recovery::Plan>(&decided);
  if (plan == nullptr) return -1;
  for (const recovery::Role role : plan->roles) *needs++ = role == recovery::Role::kLevel ? 0 : 1;
  return plan->donor;
}

ddprun_core* ddprun_core_make(int is_prepared) {
  using recovery::State;
  return new ddprun_core{is_prepared != 0 ? State(recovery::Prepared{}) : State(recovery::SetUp{}),
                         {}};
}
const char* ddprun_core_state(const ddprun_core* core) { return std::visit(Names{}, core->state); }
int ddprun_core_place(const ddprun_core* core, ddprun_place* place) {
  const auto* const regrouping = std::get_if<recovery::Regrouping>(&core->state);
  if (regrouping == nullptr) return 0;
  const recovery::Place its = recovery::place_of(*regrouping);
  *place = {static_cast<std::int64_t>(its.holds), its.committed, its.calls, its.is_in_step};
  return 1;
}
int ddprun_core_joined(ddprun_core* core, std::int64_t committed) {
  return core->tell(recovery::Joined{committed});
}
int ddprun_core_placed(ddprun_core* core) { return core->tell(recovery::Placed{}); }
int ddprun_core_step_begins(ddprun_core* core) { return core->tell(recovery::StepBegins{}); }
int ddprun_core_step_over(ddprun_core* core) { return core->tell(recovery::StepOver{}); }
int ddprun_core_regroup(ddprun_core* core, int has_stepped) {
  return core->tell(recovery::Regroup{has_stepped != 0});
}
int ddprun_core_met(ddprun_core* core, const ddprun_place* places, std::size_t count, int self) {
  return core->tell(recovery::Met{places_of(places, count), self});
}
int ddprun_core_took(ddprun_core* core, std::int64_t calls, int has_entry, int has_last_entry,
                     int has_last_effect) {
  return core->tell(
      recovery::Took{calls, {has_entry != 0, has_last_entry != 0, has_last_effect != 0}});
}
int ddprun_core_refused(ddprun_core* core, const char* why) {
  return core->tell(recovery::Refused{why});
}
int ddprun_core_left(ddprun_core* core) { return core->tell(recovery::Left{}); }
const ddprun_action* ddprun_core_actions(const ddprun_core* core) { return core->actions.data(); }

ddprun_mirror* ddprun_mirror_make(std::size_t state_bytes, const char* set_up,
                                  std::size_t set_up_bytes) {
  return guarded(
      [&] {
        return new ddprun_mirror{Mirror::make(state_bytes, {set_up, set_up_bytes})};
      },
      nullptr);
}
ddprun_mirror* ddprun_mirror_open(int descriptor) {
  return guarded([&] { return new ddprun_mirror{Mirror::open(rdzv::UniqueFd(descriptor))}; },
                 nullptr);
}
int ddprun_mirror_descriptor(const ddprun_mirror* mirror) { return mirror->its->descriptor(); }
std::size_t ddprun_mirror_set_up(const ddprun_mirror* mirror, char* to, std::size_t bytes) {
  return copy(mirror->its->setup(), to, bytes);
}
int ddprun_mirror_write(ddprun_mirror* mirror, std::int64_t step, int is_effect, const char* head,
                        std::size_t head_bytes, const char* data, std::size_t data_bytes) {
  const std::string_view parts[] = {{head, head_bytes}, {data, data_bytes}};
  if (mirror->its->write(step, moment_of(is_effect), parts)) return 0;
  return guarded(
      [&] {
        mirror->its = mirror->its->larger(step, 2 * (head_bytes + data_bytes));
        mirror->its->write(step, moment_of(is_effect), parts);
        return 1;
      },
      -1);
}
std::int64_t ddprun_mirror_read(const ddprun_mirror* mirror, std::int64_t step, int is_effect,
                                char* to, std::size_t bytes) {
  const auto state = mirror->its->read(step, moment_of(is_effect));
  return state ? static_cast<std::int64_t>(copy(*state, to, bytes)) : -1;
}

ddprun_link* ddprun_link_adopt(int socket, void* page) {
  return new ddprun_link{AgentLink::adopt(socket, static_cast<link::Page*>(page))};
}
void ddprun_link_hold_death_lock(ddprun_link* link) { link->its->hold_death_lock(); }
void ddprun_link_send_mirror(ddprun_link* link, int mirror) { link->its->send_mirror(mirror); }
void ddprun_link_offer(ddprun_link* link, int mirror) { link->its->offer_recovery(mirror); }
void ddprun_link_withdraw(ddprun_link* link) { link->its->withdraw_recovery(); }
void ddprun_link_refuse(ddprun_link* link, const char* why, int nor_later) {
  link->its->refuse_recovery(why, nor_later != 0);
}
void ddprun_link_regrouped(ddprun_link* link, std::uint32_t generation) {
  link->its->regrouped(generation);
}
void ddprun_link_committed(ddprun_link* link, std::int64_t steps, std::uint32_t generation) {
  link->its->committed(steps, generation);
}
void ddprun_link_offer_to_take_place(ddprun_link* link) { link->its->offer_to_take_place(); }
int ddprun_link_is_placed(const ddprun_link* link) { return link->its->is_placed() ? 1 : 0; }
void ddprun_link_note_gpu(ddprun_link* link, std::uint64_t id, std::uint32_t index,
                          std::uint64_t free_bytes, std::uint64_t used_bytes) {
  link->its->note_gpu(id, index, free_bytes, used_bytes);
}
std::uint32_t ddprun_link_place(ddprun_link* link, int descriptors[3]) {
  auto place = link->its->place();
  if (!place) return 0;
  descriptors[0] = place->out.release();
  descriptors[1] = place->err.release();
  descriptors[2] = place->mirror.release();
  return place->generation;
}
std::uint32_t ddprun_link_await_news(ddprun_link* link, std::uint32_t known) {
  const auto news = link->its->await_group_news(/*stop=*/-1, known);
  if (!news) return 0;
  return news->broken ? UINT32_MAX : news->regroup->generation;
}
}
