// ddpctl: the tool beside ddprun: looks at and controls running jobs, runs a store or a leader. Its
// commands with their options; the only source that includes CLI11, whose headers construct
// validators at every start of ddprun in each source that includes them.
#include "launcher/ctl/ddpctl.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>

#include "agent/query/log_query.h"
#include "launcher/cli/help.h"
#include "launcher/cli/secrets.h"
#include "launcher/cli/text.h"
#include "launcher/ctl/command_texts.h"
#include "launcher/ctl/control_client.h"
#include "launcher/plan/leader_options.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/leader/token.h"
#include "rendezvous/run_leader.h"

namespace ddprun::cli {
namespace {

constexpr const char* kJobExitCodes = R"(Exit codes:
  0  done
  1  any other failure, or the job refused
  2  wrong usage
  3  no such job of yours runs on this node
  4  several jobs are meant; name one by the process id of its agent
  5  the job's agent does not answer
  6  the folder or socket is not yours
)";

constexpr const char* kForgetExitCodes = R"(Exit codes:
  0  done
  1  any other failure
  2  wrong usage
  3  no memory of such a job of yours is kept on this node
  4  several jobs are meant; name one
  5  the process that holds the memory does not answer
)";

constexpr const char* kStoreExitCodes = R"(Exit codes:
  0  done
  1  any other failure
  2  wrong usage
  3  the server cannot be reached: unknown name, no route, nobody listens on that port
  4  what listens there is no store
  5  the time limit passed
  6  the key is not there
  7  the server closed the connection, as it does when a value to add to is no number
  8  the address to listen on cannot be had
)";

constexpr const char* kLeaderExitCodes =
    R"(Exit codes: those of the job, as every ddprun of it ends with them. Among them:
  0    every worker ended with 0
  2    wrong usage
  110  the nodes did not come together in time
  112  fewer nodes than the minimum were left
  114  the address to listen on cannot be had
)";

constexpr const char* kTokenExitCodes = R"(Exit codes:
  0  the file is there
  1  it cannot be made
  2  wrong usage
)";

constexpr const char* kReplayExitCodes = R"(Exit codes:
  0  played to its end, or to where the file is cut off
  1  the file cannot be read
  2  wrong usage
  3  a line of it is damaged, or it is no recording
  4  this version decides otherwise than the one that recorded it
)";

constexpr const char* kDoctorExitCodes = R"(Exit codes:
  0  nothing to look at (what was skipped is not ok; it says so)
  1  something to look at
  2  wrong usage
)";

constexpr const char* kJob =
    "its id (--rdzv-id), its program, or the process id of its agent on this node";

class Commands {
 public:
  explicit Commands(CLI::App& app) : app_(app) {}

  // Adds one that calls `function` with what its options have filled.
  template <typename Arguments>
  std::pair<CLI::App*, Arguments*> add(const char* name, const char* what, const char* exit_codes,
                                       int (*function)(const Arguments&)) {
    CLI::App* const command = app_.add_subcommand(name, what);
    command->footer(exit_codes);
    const auto arguments = std::make_shared<Arguments>();
    command->callback([this, function, arguments] {
      given_ = [function, arguments] { return function(*arguments); };
    });
    return {command, arguments.get()};
  }
  int run() const { return given_(); }

 private:
  CLI::App& app_;
  std::function<int()> given_;
};

// Turns a time as ddprun's own options take it, such as 90s or 5m, into seconds.
CLI::Validator parsed_time(double least = 0) {
  const auto parse = [least](std::string& text) -> std::string {
    const auto time = seconds_in(text);
    if (!time || time->count() < least) {
      return text + " is no such time; give seconds, " +
             (least > 0 ? "at least " + CLI::detail::to_string(least) + ", " : "") +
             "such as 30 or 0.5, or as in 90s, 5m, 2h";
    }
    text = std::to_string(time->count());
    return {};
  };
  return {parse, ""};
}

void add_status(Commands& commands) {
  const auto [status, its] = commands.add("status", "Show a running job: rounds, nodes, workers.",
                                          kJobExitCodes, show_status);
  status->add_option("JOB", its->job, std::string(kJob) + "; needed if several jobs run");
  status->add_flag("--json", its->as_json, "as one line of JSON (agent/README.md has its fields)");
  status->add_flag("--watch", its->watches, "repeat until the job has ended");
  status->add_option("--interval", its->interval_s, "time between updates, with --watch")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->transform(parsed_time(0.1));
  status->add_flag("--all", its->shows_all, "every node and worker, however many there are");
}

void add_logs(Commands& commands) {
  const auto [logs, its] = commands.add(
      "logs",
      "Print the last lines of workers' output, from all nodes of a job. With -r, -t or --log-dir "
      "they are read from the log files; else only the latest lines of stderr are there.",
      kJobExitCodes, print_logs);
  logs->add_option("JOB", its->job, kJob);
  logs->add_option("--rank", its->ranks, "only of these workers: RANK,...; default: all, up to 32")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("RANK,...");
  logs->add_option("-n,--lines,--tail", its->lines, "of each worker's streams")
      ->capture_default_str()
      ->check(CLI::Range(0, agent::LogQuery::kLinesMax));
  logs->add_flag("-f,--follow", its->follows,
                 "also print new output, of later rounds too, until the job has ended");
  logs->add_flag("--raw", its->is_raw,
                 "print every byte unchanged; without it a line is what follows its last carriage "
                 "return, and a terminal gets colours, and all other escape sequences as text");
}

void add_stacks(Commands& commands) {
  const auto [stacks, its] = commands.add(
      "stacks",
      "Print what the workers of a job are doing, on all nodes: the stack of the main thread, once "
      "for all workers that have the same. Functions are shown where eu-stack (elfutils), gdb or, "
      "for "
      "Python, py-spy is installed; each stops a worker for a moment. Takes 7 s at most.",
      kJobExitCodes, print_stacks);
  stacks->add_option("JOB", its->job, kJob);
  stacks->add_option("--rank", its->ranks, "only of these workers: RANK,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("RANK,...");
  stacks->add_flag("--all", its->shows_all,
                   "all threads, not only the main one. Python answers this itself where py-spy is "
                   "not installed, "
                   "and may crash by it if its threads come and go just then");
  stacks->add_flag("--json", its->as_json, "as one line of JSON (agent/README.md has its fields)");
}

void add_events(Commands& commands) {
  const auto [events, its] = commands.add(
      "events", "Print the latest events of a job on this node, as --events writes them.",
      kJobExitCodes, print_events);
  events->add_option("JOB", its->job, kJob);
  events->add_flag("-f,--follow", its->follows, "also print new events, until the job has ended");
}

void add_stop(Commands& commands, const char* name, const char* what, const char* no_wait,
              int (*function)(const StopArguments&)) {
  const auto [stop, its] = commands.add(name, what, kJobExitCodes, function);
  stop->add_option("JOB", its->job, kJob);
  stop->add_flag("--no-wait", its->waits_not, no_wait);
}

void add_store(Commands& commands) {
  const auto [store, arguments] = commands.add(
      "store", "A c10d key-value store: run one, or look into one.", kStoreExitCodes, use_store);
  store->add_option("--listen", arguments->listen,
                    "Serve an empty store at HOST:PORT (a numeric address; port 0: any) until TERM "
                    "or INT; prints the address once it is ready.");
  store
      ->add_option("--store-memory", arguments->memory_mib,
                   "The most that the served store may hold, in MiB.")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();

  const auto command = [&app = *store, &its = *arguments](const char* name, const char* help) {
    CLI::App* const sub = app.add_subcommand(name, help);
    sub->add_option("server", its.server, "HOST:PORT of the store")->required();
    sub->add_option("--timeout", its.timeout_s, "Time to wait for an answer")
        ->type_name("SECONDS")
        ->capture_default_str()
        ->transform(parsed_time());
    sub->callback([&its, name] { its.command = name; });
    return sub;
  };
  const auto with_key = [&its = *arguments](CLI::App* sub) {
    sub->add_option("key", its.key, "The key")->required();
    return sub;
  };
  with_key(command("get", "Print the value of a key."))
      ->add_option("--wait", arguments->wait_s, "Time to wait for the key if it is not there")
      ->type_name("SECONDS")
      ->transform(parsed_time());
  with_key(command("set", "Set a key."))
      ->add_option("value", arguments->value, "The value; '-' reads it from stdin")
      ->required();
  with_key(command("add", "Add to the number under a key and print the sum."))
      ->add_option("delta", arguments->delta, "What to add; a negative one after '--'")
      ->capture_default_str();
  command("wait", "Wait until all keys are there, at most for --timeout.")
      ->add_option("keys", arguments->keys, "The keys")
      ->required();
  command("list", "Print all keys, sorted.");
  command("delete", "Delete keys.")->add_option("keys", arguments->keys, "The keys")->required();
  command("stats",
          "Print how quickly the store answers, and how many keys it has under which prefix.");
}

void add_replace(Commands& commands) {
  const auto [replace, its] = commands.add("replace",
                                           "End one worker and let its prepared standby take its "
                                           "place; all others keep their processes. "
                                           "This costs one restart of --max-restarts.",
                                           kJobExitCodes, replace_worker);
  replace->add_option("JOB", its->job, kJob);
  replace->add_option("--rank", its->rank, "of the worker, on any node")->required();
  replace->add_flag("--no-wait", its->waits_not,
                    "do not wait until all have taken their next step");
}

constexpr const char* kNode = "its host name or address, or its node rank in the round";

void add_drain(Commands& commands) {
  const auto [drain, its] = commands.add(
      "drain",
      "Let a node take part in no further round, as soon as enough others are there: a spare takes "
      "its place, or an elastic job goes on with fewer. Its ddprun stays and waits. This costs no "
      "restart of --max-restarts.",
      kJobExitCodes, drain_node);
  drain->add_option("NODE", its->node, kNode)->required();
  drain->add_option("JOB", its->job, kJob);
  drain->add_flag("--now", its->is_at_once, "do not wait for the end of the step");
  drain->add_flag("--no-wait", its->waits_not, "do not wait until the job goes on without it");
}

void add_undrain(Commands& commands) {
  const auto [undrain, its] =
      commands.add("undrain",
                   "Let a node take part again that was drained, or that failures or its health "
                   "check have left out.",
                   kJobExitCodes, undrain_node);
  undrain->add_option("NODE", its->node, kNode)->required();
  undrain->add_option("JOB", its->job, kJob);
}

void add_forget(Commands& commands) {
  const auto [forget, its] =
      commands.add("forget",
                   "Free the memory that an ended job has left on this node for its next ddprun "
                   "(--keep-memory).",
                   kForgetExitCodes, forget_memory);
  forget->add_option(
      "JOB", its->job,
      "its id, or the process id that its agent had; needed if several jobs left some");
}

struct LeaderArguments {
  std::string listen;
  CommandLine line;
};

int lead(const LeaderArguments& arguments) {
  const Environment environment = environment_from(environ);
  const Settings settings = resolve(arguments.line, environment, {});
  std::vector<std::string> warnings;
  const auto job =
      read_leader_job(arguments.listen, settings, is_in_slurm_job(environment), warnings);
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "ddpctl: warning: %s\n", printable(warning).c_str());
  }
  return job ? rdzv::run_leader(*job) : report(job.error(), kExitUsage);
}

struct TokenArguments {
  std::string file;
};

int make_token(const TokenArguments& arguments) {
  const auto made = rdzv::make_token(arguments.file);
  return made ? kExitSuccess : report(made.error().to_string(), 1);
}

void add_leader(Commands& commands) {
  const auto [leader, its] = commands.add(
      "leader", "Lead the rounds of a job, until it has ended, without being one of its nodes.",
      kLeaderExitCodes, lead);
  leader
      ->add_option("--listen", its->listen,
                   "HOST:PORT to listen on, the --rdzv-endpoint of the nodes (port 0: any free "
                   "port); the address is printed when nodes may connect")
      ->required();
  for (const OptionId id : kLeaderOptions) {
    const OptionSpec& spec = spec_of(id);
    const std::string name(spec.name);
    const std::string underscored = replaced(name, '-', "_");
    auto* value = &its->line.values[static_cast<std::size_t>(id)];
    const std::string names = "--" + name + (name == underscored ? "" : ",--" + underscored);
    if (spec.kind == Kind::kFlag) {
      leader->add_flag_callback(
          names, [value] { *value = "1"; }, std::string(spec.help));
      continue;
    }
    leader
        ->add_option_function<std::string>(
            names, [value](const std::string& text) { *value = text; }, std::string(spec.help))
        ->type_name(std::string(spec.value_name))
        ->default_str(std::string(spec.default_text))
        ->take_last();
  }
}

void add_token(Commands& commands) {
  const auto [token, its] = commands.add(
      "token",
      "Make a token, the secret that keeps strangers out of a job: a new file that only "
      "you can read. Give it to ddprun on every node by --token-file.",
      kTokenExitCodes, make_token);
  token->add_option("FILE", its->file, "the file to make; one that is there is left alone")
      ->required();
}

void add_replay(Commands& commands) {
  const auto [replaying, its] = commands.add(
      "replay",
      "Replay what ddprun --record has written: the same decisions, step by step, with the reason "
      "of each. Nothing is started.",
      kReplayExitCodes, replay);
  replaying->add_option("FILE", its->file, "the recording of one node")->required();
}

void add_doctor(Commands& commands) {
  const auto [doctor, its] =
      commands.add("doctor", "Check and try what jobs need of this machine, and say what to do.",
                   kDoctorExitCodes, diagnose);
  doctor->add_option("names", its->names, "Names of other nodes, to look up too");
  doctor->add_flag("--json", its->as_json, "Print JSON");
  doctor
      ->add_option("--timeout", its->timeout_s,
                   "Time limit for everything; most of it is for importing torch")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->transform(parsed_time(0.001));
  doctor->add_option("--worker", its->worker,
                     "A program to start as two workers instead of PyTorch's all-reduce; it must "
                     "end with 0");
}

// ---- what is printed about all of them

CommandText text_of(const CLI::App& app) {
  CommandText text{app.get_name(), app.get_description(), {}, {}, app.get_footer()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    CommandText::Option each{{}, "", option->get_description()};
    for (const std::string& letter : option->get_snames()) each.names.push_back("-" + letter);
    for (const std::string& name : option->get_lnames()) each.names.push_back("--" + name);
    const std::string value = option->get_type_name();
    if (each.names.empty()) {
      each.value = option->get_name();
    } else if (option->get_items_expected_max() > 0) {
      each.value = value.substr(0, value.find(':'));
    }
    text.options.push_back(std::move(each));
  }
  // A command's own commands inherit what it says about exit codes.
  if (app.get_parent() != nullptr && app.get_parent()->get_footer() == text.exit_codes) {
    text.exit_codes.clear();
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    text.commands.push_back(text_of(*command));
  }
  return text;
}

[[noreturn]] void print_and_end(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  throw CLI::Success();
}

// Also without a command.
void add_texts(CLI::App& app) {
  app.add_flag_callback(
         "--print-man-page", [&app] { print_and_end(man_page_of(text_of(app), version())); },
         "print the man page")
      ->trigger_on_parse();
  app.add_option_function<std::string>(
         "--print-completion",
         [&app](const std::string& shell) { print_and_end(completion_of(text_of(app), shell)); },
         "print the completion script for a shell: bash, zsh or fish")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL")
      ->trigger_on_parse();
  app.add_option_function<std::string>(
         "--print-jobs",
         [](const std::string& command) { print_and_end(lines_about_jobs(command == "forget")); })
      ->group("")  // only for the completion scripts
      ->trigger_on_parse();
}

}  // namespace

int report(const std::string& sentence, int code) {
  std::fprintf(stderr, "ddpctl: %s\n", printable_lines(sentence).c_str());
  return code;
}

int run_ddpctl(int argc, char** argv) {
  ::prctl(PR_SET_NAME, "ddpctl");
  CLI::App app("Tools for ddprun's jobs.");
  app.footer("--help of a command lists its options and exit codes.");
  app.set_version_flag("--version", [] {
    const std::string text = version_text("ddpctl");
    return text.substr(0, text.find('\n'));  // CLI11 ends the line
  });
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return shown_text(CLI::FailureMessage::simple(failed, error));
  });
  Commands commands(app);
  add_status(commands);
  add_logs(commands);
  add_stacks(commands);
  add_events(commands);
  add_stop(commands, "stop",
           "Stop a job on all its nodes, as SIGTERM to its leader does: its workers get SIGTERM, "
           "and SIGKILL after --shutdown-timeout.",
           "do not wait until it has ended", stop_job);
  add_stop(commands, "restart",
           "Stop the current round of a job and begin the next one; this costs no restart of "
           "--max-restarts.",
           "do not wait until the next round has done its first step", restart_job);
  add_replace(commands);
  add_drain(commands);
  add_undrain(commands);
  add_forget(commands);
  add_store(commands);
  add_leader(commands);
  add_token(commands);
  add_replay(commands);
  add_doctor(commands);
  add_texts(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_help = error.get_exit_code() == 0;
    app.exit(error);
    return is_help ? kExitSuccess : kExitUsage;
  }
  return commands.run();
}

}  // namespace ddprun::cli
