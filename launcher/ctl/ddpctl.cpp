// ddpctl: the tool beside ddprun: looks at and controls running jobs, runs a store or a leader.
// Wiring only.
#include "launcher/ctl/ddpctl.h"

#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "launcher/cli/secrets.h"
#include "launcher/cli/version.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli {

int report(const Error& error, int code) {
  std::fprintf(stderr, "ddpctl: %s\n", printable_lines(error.to_string()).c_str());
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
  const std::map<std::string, std::function<int()>> commands{
      {"status", add_status_command(app)},   {"logs", add_logs_command(app)},
      {"events", add_events_command(app)},   {"stop", add_stop_command(app)},
      {"restart", add_restart_command(app)}, {"store", add_store_command(app)},
      {"leader", add_leader_command(app)},   {"replay", add_replay_command(app)},
      {"doctor", add_doctor_command(app)},
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_help = error.get_exit_code() == 0;
    app.exit(error);
    return is_help ? kExitSuccess : kExitUsage;
  }
  return commands.at(app.get_subcommands().front()->get_name())();
}

}  // namespace ddprun::cli
