// What the metadata service of a cloud, or the user's command, is asked, and what the answers mean. Pure; notice_watch.h
// asks. An answer that is no notice beyond doubt is none: a job that leaves a machine which stays has lost its place.
//
//   provider   is asked                                  answer                         then
//   AWS        PUT api/token                             200, a word                    the next request, with it
//                                                        else                           unclear
//              GET instance-id                           200, a word; else              next, with it; without
//              GET spot/instance-action                  404                            no notice
//                                                        200, a known action            notice
//                                                        401                            no notice; another token next time
//                                                        else                           unclear
//   GCP        GET instance/name                         200, a word; else              next, with it; without
//              GET instance/preempted                    200 TRUE                       notice
//                                                        200 FALSE                      next
//                                                        else                           unclear
//              GET instance/maintenance-event            200 TERMINATE_ON_HOST_…        notice
//                                                        200, another word              no notice
//                                                        else                           unclear
//   Azure      GET instance/compute/name                 200, a word                    next
//                                                        else                           unclear (1)
//              GET scheduledevents                       200, with Preempt or           notice
//                                                        Terminate of this machine (2)
//                                                        200, other events or none      no notice
//                                                        else                           unclear
//   a command  is run                                    0, with a line on stdout       notice
//                                                        another exit code, a signal    no notice
//                                                        0 and no line; 126, 127        unclear
//
// Token and name are asked for once. AWS's recommendation to rebalance is no notice: it may come hours before an
// interruption, or without one.
//
//   (1) the events are those of a whole scale set
//   (2) not Reboot, Redeploy, Freeze: the machine comes back, and they are announced up to days before
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "agent/job.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/http/http_client.h"

namespace ddprun::agent {

// At this address in every cloud. No name is looked up for it: that could take longer than the answer may.
inline constexpr const char* kMetadataAddress = "169.254.169.254";

struct Notice {
  std::string source;  // "the metadata service says that", "the command of --preempt-notice says:"
  std::string instance;  // its id or name; empty: not known
  std::string sentence;  // "instance i-0abc is terminated at 2026-11-30T12:00:00Z"
  std::optional<std::chrono::system_clock::time_point> at = {};  // if it is known
  bool operator==(const Notice&) const = default;
};
struct NoNotice {
  bool operator==(const NoNotice&) const = default;
};
struct Unclear {
  std::string why;  // "it answers 500 to GET /latest/…"
  bool operator==(const Unclear&) const = default;
};
using Answer = std::variant<Notice, NoNotice, Unclear>;

// "the metadata service says that instance i-0abc is terminated at 2026-11-30T12:00:00Z (in 118 s)"
std::string in_words(const Notice& notice, std::chrono::system_clock::time_point now);

// The questions to one metadata service, each a few requests one after the other.
class MetadataTalk {
 public:
  explicit MetadataTalk(NoticeSpec::From provider) : provider_(provider) {}

  // A question begins: its first request.
  rdzv::HttpRequest begin();
  // To the request before: the next one, or what the whole question has found out.
  std::variant<rdzv::HttpRequest, Answer> on_reply(const rdzv::HttpReply& reply);

 private:
  enum class Step { kToken, kInstance, kAction, kPreempted, kMaintenance, kEvents };
  using Next = std::variant<rdzv::HttpRequest, Answer>;

  rdzv::HttpRequest ask(Step step);
  Step first_question() const;
  Next unclear(const rdzv::HttpReply& reply) const;
  Next on_token(const rdzv::HttpReply& reply);
  Next on_instance(const rdzv::HttpReply& reply);
  Next on_action(const rdzv::HttpReply& reply);
  Next on_preempted(const rdzv::HttpReply& reply);
  Next on_maintenance(const rdzv::HttpReply& reply);
  Next on_events(const rdzv::HttpReply& reply);
  Notice notice(const std::string& verb,
                std::optional<std::chrono::system_clock::time_point> at = {}) const;

  const NoticeSpec::From provider_;
  Step step_ = Step::kToken;
  rdzv::HttpRequest asked_;
  std::string token_;
  std::string instance_;
  bool has_asked_instance_ = false;
};

// What a command that has ended in time has said. `output`: the begin of its stdout.
Answer answer_of_command(const ExitStatus& end, std::string_view output);

// How many questions in a row may be unclear before a line says so. Azure's service takes up to two minutes for its first
// answer to a machine.
int patience(NoticeSpec::From from);

}  // namespace ddprun::agent
