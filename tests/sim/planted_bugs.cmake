# Protocol bugs that the simulator has to find, planted into copies of cores and shells for sim_bugs_test only:
#   plant(name file "what the code says" "what the bug says")
# Both are expressions; the copy says (is_planted(name) ? bug : code). A bug whose place is not found
# exactly once stops the configuration, so that the table follows the code.
set(planted_files "")
set(planted_names "")
set(planted_folder ${CMAKE_CURRENT_BINARY_DIR}/planted)

function(plant name file code bug)
  set(staged "${planted_text_${file}}")
  if(staged STREQUAL "")
    file(READ ${PROJECT_SOURCE_DIR}/${file} staged)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
    string(PREPEND staged "#include \"tests/sim/planted.h\"\n")
    set(planted_files ${planted_files} ${file} PARENT_SCOPE)
  endif()
  string(FIND "${staged}" "${code}" first)
  string(FIND "${staged}" "${code}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "planted bug ${name}: ${file} does not say exactly once: ${code}")
  endif()
  string(REPLACE "${code}"
         "(::ddprun::sim::is_planted(\"${name}\") ? (${bug}) : (${code}))" staged "${staged}")
  set(planted_text_${file} "${staged}" PARENT_SCOPE)
  set(planted_names ${planted_names} ${name} PARENT_SCOPE)
endfunction()

set(leader rendezvous/round/round_core.cpp)
set(agent agent/core/node_core.cpp)

plant(LossCostsBudget rendezvous/round/round_end.h "gone.size() == gone.count(cause_node)" "true")
plant(FailureCostsNothing rendezvous/round/restart_policy.h "end.is_charged" "false")
plant(BudgetIsOneTooMany rendezvous/round/restart_policy.h
      "restarts(now) < rules_.max_restarts" "restarts(now) <= rules_.max_restarts")
plant(RestartsCountForEver rendezvous/round/restart_policy.h "now - at < rules_.window" "true")
plant(RestartsAreForgottenTooEarly rendezvous/round/restart_policy.h "now - at < rules_.window" "now - at < rules_.window / 2")
plant(StepsOfBeforeAreProgress rendezvous/round/restart_policy.h "*progress->step <= *history_.step" "*progress->step < *history_.step")
plant(OneRestartInVainTooMany rendezvous/round/restart_policy.h
      "history_.without_progress < rules_.no_progress_restarts"
      "history_.without_progress <= rules_.no_progress_restarts")
plant(SettlesBeforeAllHaveStopped ${leader} "stopping.awaited.is_empty()" "stopping.awaited.size() <= 1")
plant(CountsRoundsOfOthers ${leader} "*round != round_" "false")
plant(BrokenConnectionIsNeverLost ${leader}
      "broken->since + config_.reconnect_grace <= now" "false")
plant(NoGraceForBrokenConnections rendezvous/round/round_core_queries.cpp
      "consider(broken->since + config_.reconnect_grace)" "consider(broken->since)")
plant(RoundGoesOnWithoutANode ${leader} "is_running() && was_in_group" "false")
plant(OtherNodesAreNotToldOfABreak ${leader} "id != knows && members_.has(id)" "false")
plant(OwnWorkersAreNotToldOfABreak ${agent} "!running->have_all_ended()" "false")
plant(LostNodeIsAwaited rendezvous/round/round_end.h "awaited.erase(node)" "false")
plant(StoreHostMayBeGone ${leader} "members_.has(opening.host)" "true")
plant(SuccessWithoutEverybody ${leader}
      "running.done.size() == members_.group().size()" "!running.done.empty()")
plant(NewcomerInterruptsFinishers ${leader} "!running.are_some_done" "true")
plant(NewcomerIsForgotten ${leader} "members_.has_connected_outsider()" "false")
plant(RestartIsNotSaidToBeAskedFor ${leader} "next_.after_request = true" "false")
plant(LeaderGoesTooEarly rendezvous/round/round_core_queries.cpp "ended != nullptr && ended->untold.empty()" "ended != nullptr")
plant(NodesThatAreToBeLeftOutAreTaken rendezvous/round/membership.cpp "node.standing == standing" "true")
plant(NodesThatAreToBeLeftOutStay rendezvous/round/membership.cpp "out_.in_group <= needed()" "true")
plant(NodesAreLeftOutBelowTheMinimum rendezvous/round/membership.h "min_nodes_ - std::min(min_nodes_, usable_.ready())" "0")
plant(FailuresBlameNoHost rendezvous/round/left_out.h "failures < kFailuresMax" "true")
plant(FailuresOfAllHostsBlameOne rendezvous/round/left_out.h "failures <= others" "false")
plant(RankThatFailsElsewhereToo rendezvous/round/left_out.h "each.rank == rank && each.name != name" "false")
plant(FitHostIsNotTakenBack ${leader} "left_out_.is_fit(host_of(from))" "void()")
plant(NewcomerStandsBeforeSurvivors rendezvous/round/membership.cpp
      "chosen.begin() + survivors" "chosen.begin()")
plant(WhatWasUnderWayIsLost rendezvous/round/resend_queue.h "unconfirmed_.front().number <= number" "true")
plant(LeavesAtABoundaryThatWasPassed rendezvous/round/step_agreement.h "asking->passed + 1" "asking->passed")
plant(LeaveIsAgreedBeforeAllHaveAnswered rendezvous/round/step_agreement.h
      "asking->answered.size() < nodes" "false")
plant(NewcomerIsPreferredToFinishers ${leader} "running->stop && running->stop->is_for_newcomer" "false")
plant(StopIsForgottenAfterAFailure ${leader} "running.stop && !stopping.stop" "false")
plant(StepIsAgreedThatWasPassed ${leader} "running->stop->steps.held(from, held.passed, members_.group().size())"
      "running->stop->steps.held(from, held.passed - 1, members_.group().size())")
plant(WorkersThatCannotWaitAreParked ${leader} "held.passed < 0" "false")
plant(WorkersThatFailWhileTheyParkAreAwaited ${agent} "!stopping->is<Asked>() && !stopping->is<Parking>()" "!stopping->is<Asked>()")
plant(WorkersThatHaveLeftAreSuccessful ${agent} "running->has_left || ended.has_left" "false")
plant(SilenceIsNotNoticed rendezvous/round/liveness.h "now - heard >= keep_alive_.timeout()" "false")
plant(NewLeaderBeginsAtRoundZero ${leader} "std::max(round_, round_min_)" "round_")
plant(NewLeaderForgetsTheBudget rendezvous/round/restart_policy.h
      "std::min(restarts, rules_.max_restarts)" "0")
plant(StopIsAnsweredTooEarly ${agent} "stopping == nullptr || !stopping->have_all_ended()"
      "stopping == nullptr")
plant(LeaverWaitsForTheJobsEnd ${agent} "leads()" "true")
plant(TimerThatWasReplacedIsTaken ${agent} "armed_ != e.timer" "!armed_")
plant(StepTakenTooLateEndsTheNextOne ${agent} "ending->steps.step() == taken.step" "true")
plant(LeaderIsMissedForEver ${agent}
      "std::get<Stopping>(state_).follow_with(FinishAlone{std::move(outcome)})" "void()")

# Replacement in place.
set(replacements rendezvous/round/replacements.h)
plant(ReplacementCostsNothing ${leader} "policy_.replaced(now_)" "void()")
plant(RestartAfterAReplacementIsChargedAgain rendezvous/round/restart_policy.h "!end.is_paid" "true")
plant(ReplacementThatFailedHasNotPaid ${leader} "stopping.retry = StoppingRound::Paid{}"
      "stopping.retry = StoppingRound::ByBudget{}")
plant(ReplacesWhoHasCommittedNothing ${replacements} "failed.committed <= 0" "false")
plant(ReplacesWithoutAStandby ${replacements} "!failed.has_standby" "false")
plant(ReplacesThoughOthersCannotRecover ${replacements} "can_recover.size() != now.nodes" "false")
plant(ReplacesThoughNoneHasTheState ${replacements}
      "std::cmp_equal(without_state(failed).size(), now.world_size)" "false")
plant(ReplacesThoughANodeMayBeLost ${leader} "std::ranges::all_of(members_.group(), is_connected)" "true")
plant(PoisonStepIsTriedForEver ${replacements} "before->second.committed == failed.committed" "false")
plant(PoisonStepIsRestarted rendezvous/round/round_end.h "!std::holds_alternative<Never>(retry)" "true")
plant(AnyGenerationCounts ${replacements} "in != generation" "false")
plant(NodesOfTheGenerationBeforeCount ${replacements} "under_way->regrouped.clear()" "void()")
plant(OneNodeRegroupsForAll ${replacements} "under_way->regrouped.size() == nodes"
      "!under_way->regrouped.empty()")
plant(ReplacementHasNoTimeLimit rendezvous/round/round_core_queries.cpp "consider(under_way->until)" "void()")
plant(OwnNodeIsNotToldOfARefusal ${leader} "tell_of_break(failed.failure.rank, std::nullopt)"
      "tell_of_break(failed.failure.rank, from)")
plant(OwnNodeIsNotToldOfTheTimeLimit ${leader} "tell_of_break(under_way->cause.rank, std::nullopt)"
      "tell_of_break(under_way->cause.rank, under_way->cause_node)")
plant(WorkersAreNotToldOfADeadOne ${agent} "!workers.have_all_ended()" "false")
plant(ReplacedWorkerStaysDead ${agent} "workers->has_ended[static_cast<std::size_t>(*dead)] = false"
      "workers->has_ended[static_cast<std::size_t>(*dead)] = true")
plant(ReplacesAfterAFailure ${agent} "running->has_failed ? nullptr : running" "running")
plant(NodeForgetsWhatAReplacementCost ${agent} "std::max(last_round_->restarts, replace.restarts)"
      "last_round_->restarts")
plant(EtcdReplacementIsNotWritten rendezvous/etcd/round_ledger.h
      "std::holds_alternative<ReplaceWorker>(each.message)" "false")

# In the shells of leader and agents.
set(server rendezvous/leader/round_server.cpp)
set(client rendezvous/leader/round_client.cpp)
plant(ShellAcknowledgesWhatHasNotCome ${client} "wire::Heartbeat{resend_.received()}"
      "wire::Heartbeat{resend_.received() + 1}")
plant(ShellOfAgentForgetsItsResendQueue ${client} "resend_.unconfirmed()"
      "std::deque<Numbered<ToLeader>>()")
plant(ShellOfLeaderForgetsItsResendQueue ${server} "peer.resend.unconfirmed()"
      "std::deque<Numbered<ToAgent>>()")
plant(ShellResumesTheSessionOfALostNode ${server} "core_.can_resume(id, session)" "true")
plant(ShellJoinsAnewWithItsOldNumbers ${client} "resend_ = {}" "resend_")
plant(ShellKeepsABrokenConnectionToItself ${server} "feed(id, LinkEvent(NodeDisconnected{}))" "void()")
plant(ShellKeepsAResumedConnectionToItself ${server} "feed(id, LinkEvent(NodeResumed{}))" "void()")
plant(ShellDoesNotCountTheHello ${server} "peer.resend.receive(1)" "peer.resend.receive(0)")
plant(ShellGivesTwoNodesOneId ${server} "next_node_++" "next_node_")
plant(ShellDoesNotArmTheTimer ${server} "!deadline || time_.is_paused()" "true")
plant(ShellKnowsNoSession ${server} "known != sessions_.end()" "false")

# Found by the simulation of jobs under etcd, as their names say.
plant(EtcdTakesEffectBeforeItIsWritten rendezvous/etcd/round_ledger.h "record != newest()" "false")
plant(EtcdIsNotToldOfTheEnd rendezvous/etcd/round_ledger.h "core.has_ended() && !record.outcome" "false")
plant(EtcdIsWrittenWithoutAFence rendezvous/etcd/job_keys.cpp "still_leads(keys, leader_revision, job_revision)"
      "std::vector<wire::EtcdCompare>()")
plant(EtcdClaimIgnoresTheOther rendezvous/etcd/job_keys.cpp "nobody_leads(keys, claim.job_revision)"
      "std::vector<wire::EtcdCompare>()")
plant(EtcdLateWriteTakesTheRecordBack rendezvous/etcd/job_keys.cpp
      "wire::EtcdCompare{What::kModRevision, keys.job, written}"
      "wire::EtcdCompare{What::kCreateRevision, keys.leader, revision}")
plant(EtcdWonClaimIsGivenBack rendezvous/etcd/job_keys.cpp
      "view->leader->leadership == claim.key.leadership" "false")
plant(EtcdLeaderForgetsTheBudget ${leader} "resumption.history" "RestartHistory()")
plant(EtcdLeaderBeginsTheRoundAgain rendezvous/etcd/election_core.cpp
      "next(*lead.record.round)" "*lead.record.round")
plant(EtcdOutcomeIsNotSeen rendezvous/etcd/election_core.cpp
      "has_ended && !incarnation_.empty() && nobody_will_tell" "false")

# In the shells and cores of a leader under etcd.
set(leadership rendezvous/etcd/leadership_core.cpp)
plant(EtcdLeaseInUseIsRevoked rendezvous/etcd/leader_claims.h "won->leader != claimed.leader" "true")
plant(EtcdLeadsByTheLeaseOfTheRecord rendezvous/etcd/leader_claims.h "asked_.leader == 0" "false")
plant(EtcdFencedWriteIsTakenForDone ${leadership} "kind == RecordWrite::Kind::kFenced" "false")
plant(EtcdOvertakenWriteIsTakenForDone ${leadership} "!is_overtaken" "true")
plant(EtcdLeaseIsNotKept ${leadership} "now >= keep_at_" "false")
plant(EtcdLaterMessagesPassThoseHeld rendezvous/etcd/round_ledger.h "due() == nullptr" "true")

# In what follows a verdict that ranks hang.
set(hangs agent/core/hang_response_core.cpp)
plant(HangTakesStacksOfTwoCasesAtOnce ${hangs} "std::ranges::any_of(cases_, takes_stacks)" "false")
plant(HangNextCaseNeverBegins ${hangs} "next == cases_.end()" "true")
plant(HangIsEndedThoughItMayHaveGoneOn ${hangs} "confirmed.is_so.value_or(false)" "confirmed.is_so.value_or(true)")
plant(HangTakesAnyAnswerForItsOwn ${hangs} "found != cases_.end() && found->second.stage == stage" "found != cases_.end()")
plant(HangLostAnswerIsNotAskedForAgain ${hangs} "std::ranges::count(answered.known, rank) > 0" "true")

# The copies, written only when they change.
set(planted_sources "")
foreach(file ${planted_files})
  set(copy ${planted_folder}/${file})
  set(old "")
  if(EXISTS ${copy})
    file(READ ${copy} old)
  endif()
  if(NOT old STREQUAL "${planted_text_${file}}")
    file(WRITE ${copy} "${planted_text_${file}}")
  endif()
  if(file MATCHES "cpp$")
    list(APPEND planted_sources ${copy})
  endif()
endforeach()
list(JOIN planted_names "\", \"" planted_names_in_c)
