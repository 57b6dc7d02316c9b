// The agent's log is written to by its event loop and by the store's thread.
#include "agent/output/log.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <string>

#include "agent/job.h"
#include "agent/output/console.h"
#include "agent/supervisor/round_store.h"
#include "rendezvous/common/unique_fd.h"
#include "tests/unit/agent/output/output_fixture.h"
#include "tests/unit/rendezvous/store/raw_client.h"

namespace ddprun::agent {
namespace {

// The thread sanitizer looks on: the formatter of the log is for one thread at a time.
TEST(Log, TheStoresThreadWarnsWhileTheLoopLogs) {
  boost::asio::io_context loop;
  PipeEnds out;
  PipeEnds err;
  Console console(loop.get_executor(), {out.write_end(), err.write_end()});
  const Log log(console, {});
  Job job;
  RoundStore store(loop, job,
                   [log](std::string_view line) { log.warn("store: " + std::string(line)); });
  const StoreResult opened = store.open(Round{0}, "127.0.0.1");
  ASSERT_EQ(opened.error, "");
  rdzv::testing::RawClient stranger(opened.port);
  stranger.send("GET / HTTP/1.1\r\n\r\n");
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (text.find("store: ") == std::string::npos && std::chrono::steady_clock::now() < deadline) {
    loop.poll();
    log.warn("the loop has something to say");
    text += err.read_available();
  }
  EXPECT_NE(text.find("closed 127.0.0.1"), std::string::npos) << text;
}

}  // namespace
}  // namespace ddprun::agent
