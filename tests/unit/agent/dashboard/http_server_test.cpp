// Each test has a server on a thread of its own and a client that does what it should or should not.
#include "agent/dashboard/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>

#include "tests/support/job.h"
#include "tests/support/raw_http.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::get_request;
using test::RawHttp;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::size_t kBigBytes = std::size_t{64} << 20;  // more than any socket takes at once

// /big is a large answer, /events a stream that is told what tell() gets, everything else the path.
class Server {
 public:
  explicit Server(HttpServerLimits limits = {}) {
    auto started = HttpServer::start(
        io_, {"127.0.0.1", 0},
        [this](const std::shared_ptr<HttpExchange>& exchange) { answer(exchange); }, limits);
    if (!started) throw std::runtime_error(started.error().to_string());
    server_ = *std::move(started);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Server() {
    boost::asio::post(io_, [this] {
      latest_.reset();
      server_.reset();
    });
    work_.reset();
    thread_.join();
  }

  std::uint16_t port() const { return server_->bound().port; }

  // What the loop says; so this also shows that it is not held up.
  template <typename F>
  auto ask(F f) {
    std::packaged_task<decltype(f())()> task(std::move(f));
    auto answer = task.get_future();
    boost::asio::post(io_, [&task] { task(); });
    return answer.get();
  }
  // Of the latest stream or large answer.
  bool has_client() {
    return ask([this] { return latest_ && latest_->is_open(); });
  }
  bool is_busy() {
    return ask([this] { return latest_ && latest_->is_busy(); });
  }
  void tell(std::string text) {
    ask([this, text = std::make_shared<const std::string>(std::move(text))] {
      latest_->send_event(text);
      return true;
    });
  }
  void end(std::string text) {
    ask([this, text = std::make_shared<const std::string>(std::move(text))] {
      latest_->end_events(text);
      return true;
    });
  }

 private:
  void answer(const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange->path() == "/never") return held_.push_back(exchange);
    if (exchange->path() == "/big") {
      latest_ = exchange;
      return exchange->reply({.body = std::string(kBigBytes, 'x')});
    }
    if (exchange->path() != "/events") return exchange->reply({.body = exchange->path()});
    if (exchange->begin_events()) latest_ = exchange;
  }

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::unique_ptr<HttpServer> server_;
  std::shared_ptr<HttpExchange> latest_;
  std::vector<std::shared_ptr<HttpExchange>> held_;
  std::thread thread_;
};

std::string reply_to(Server& server, const std::string& request) {
  RawHttp client(server.port());
  client.send(request);
  return client.read_all();
}

TEST(HttpServer, AnswersOneRequestAfterTheOtherOnAConnection) {
  Server server;
  RawHttp client(server.port());
  for (const std::string path : {"/a", "/b"}) {
    client.send(get_request(path + "?x=/c"));
    const std::string reply = client.read_reply();
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_TRUE(reply.ends_with("\r\n\r\n" + path)) << reply;
  }
  client.send(get_request("/c") + get_request("/d"));
  EXPECT_TRUE(client.read_reply().ends_with("\r\n\r\n/c"));
  EXPECT_TRUE(client.read_reply().ends_with("\r\n\r\n/d"));
}

TEST(HttpServer, ClosesWhenTheClientAsksForItAndWithHttp10) {
  Server server;
  EXPECT_TRUE(reply_to(server, get_request("/a", "Connection: close\r\n")).ends_with("\r\n\r\n/a"));
  EXPECT_TRUE(reply_to(server, "GET /a HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").ends_with("/a"));
}

TEST(HttpServer, HeadGetsTheLengthAndNoBody) {
  Server server;
  const std::string reply =
      reply_to(server, "HEAD /abc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_TRUE(reply.ends_with("\r\n\r\n")) << reply;
}

TEST(HttpServer, SaysWhatIsWrongWithARequest) {
  Server server;
  const std::string host = "Host: localhost\r\n";
  const std::pair<std::string, std::string> cases[] = {
      {"\x16\x03\x01\x02\x00\x01\xfc\x03\x03 a TLS hello, more or less\r\n\r\n", "400"},
      {"this is no request\r\n\r\n", "400"},
      {std::string(4000, '\0') + "\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\n" + host + "bad header\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc", "400"},
      {"GET / HTTP/1.1\r\n" + host + "Content-Length: -3\r\n\r\nabc", "400"},
      {"GET / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {"GET http://localhost/ HTTP/1.1\r\n" + host + "\r\n", "400"},
      {"GET / HTTP/3.7\r\n" + host + "\r\n", "400"},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", "405"},
      {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", "405"},
      {"GET /" + std::string(10'000, 'a') + " HTTP/1.1\r\n" + host + "\r\n", "431"},
      {"GET / HTTP/1.1\r\n" + host + "X: " + std::string(100'000, 'a') + "\r\n\r\n", "431"},
  };
  for (const auto& [request, status] : cases) {
    const std::string reply = reply_to(server, request);
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 " + status + " ")) << request.substr(0, 60);
    EXPECT_THAT(reply, HasSubstr("Connection: close\r\n")) << request.substr(0, 60);
  }
  EXPECT_THAT(reply_to(server, "PUT / HTTP/1.1\r\n" + host + "\r\n"),
              HasSubstr("Allow: GET, HEAD"));
  EXPECT_THAT(reply_to(server, get_request("/well", "Connection: close\r\n")), HasSubstr("200 OK"));
}

TEST(HttpServer, ServesOnlyUnderLoopbacksOwnNames) {
  Server server;
  for (const std::string host :
       {"localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:9400", "[::1]", "[::1]:80"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const std::string host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.org",
                                 "localhost:", "localhost:80:90", "localhost:x", "::1", "[::1",
                                 "127.0.0.2", "10.0.0.1", "evil.example:localhost"}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
    EXPECT_THAT(reply_to(server, "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n"),
                StartsWith("HTTP/1.1 403 "));
  }
  EXPECT_THAT(reply_to(server, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(reply_to(server, "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"),
              StartsWith("HTTP/1.1 403 "));
}

TEST(HttpServer, DropsARequestThatDoesNotEnd) {
  Server server({.request = 50ms});
  RawHttp silent(server.port());
  EXPECT_THAT(silent.read_all(), IsEmpty());
  EXPECT_TRUE(silent.was_closed());
  const std::string reply = reply_to(server, "GET / HTTP/1.1\r\nHost: lo");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 408 "));
}

TEST(HttpServer, DropsAConnectionThatIsIdle) {
  Server server({.idle = 50ms});
  RawHttp client(server.port());
  client.send(get_request("/"));
  EXPECT_THAT(client.read_reply(), HasSubstr("200 OK"));
  EXPECT_THAT(client.read_all(), IsEmpty());
  EXPECT_TRUE(client.was_closed());
}

TEST(HttpServer, DropsAClientThatDoesNotReadItsAnswer) {
  Server server({.write = 50ms});
  RawHttp client(server.port());
  client.send(get_request("/big"));
  // The others are served meanwhile.
  EXPECT_THAT(test::http_get(server.port(), "/a"), HasSubstr("200 OK"));
  EXPECT_TRUE(eventually([&] { return !server.has_client(); }));
  EXPECT_LT(client.read_all().size(), kBigBytes);
  EXPECT_TRUE(client.was_closed());
}

TEST(HttpServer, DropsAnAnswerThatNeverComes) {
  Server server({.write = 50ms});
  RawHttp client(server.port());
  client.send(get_request("/never"));
  EXPECT_THAT(client.read_all(), IsEmpty());
  EXPECT_TRUE(client.was_closed());
}

TEST(HttpServer, MakesRoomByClosingWhoHasWaitedLongest) {
  constexpr std::size_t kConnections = 3;
  Server server({.connections = kConnections});
  // All of them stay open: whoever comes when there are three takes the place of the oldest.
  std::vector<std::unique_ptr<RawHttp>> clients;
  for (std::size_t i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawHttp>(server.port()));
    clients.back()->send(get_request("/a"));
    EXPECT_THAT(clients.back()->read_reply(), HasSubstr("200 OK"));
    if (i < kConnections) continue;
    RawHttp& oldest = *clients[i - kConnections];
    EXPECT_THAT(oldest.read_all(), IsEmpty());
    EXPECT_TRUE(oldest.was_closed());
  }
  for (std::size_t i = clients.size() - kConnections; i < clients.size(); ++i) {
    clients[i]->send(get_request("/b"));
    EXPECT_TRUE(clients[i]->read_reply().ends_with("\r\n\r\n/b"));
  }
}

TEST(HttpServer, AFloodOfSilentConnectionsKeepsNobodyOut) {
  Server server({.connections = 8});
  std::vector<std::unique_ptr<RawHttp>> flood;
  flood.reserve(200);
  for (int i = 0; i < 200; ++i) {
    flood.push_back(std::make_unique<RawHttp>(server.port()));
    flood.back()->send("GET / HT");
  }
  EXPECT_THAT(test::http_get(server.port(), "/a"), HasSubstr("200 OK"));
}

TEST(HttpServer, StreamsEvents) {
  Server server;
  RawHttp client(server.port());
  client.send(get_request("/events"));
  EXPECT_THAT(client.read_until("\r\n\r\n"),
              AllOf(HasSubstr("200 OK"), HasSubstr("Content-Type: text/event-stream"),
                    HasSubstr("Cache-Control: no-store")));
  for (const std::string text : {"data: 1\n\n", "data: 2\n\n"}) {
    ASSERT_TRUE(eventually([&] { return !server.is_busy(); }));
    server.tell(text);
    EXPECT_EQ(client.read_until("\n\n"), text);
  }
}

TEST(HttpServer, AStreamEndsWithItsLastEventAlsoWhereTheOneBeforeIsUnderWay) {
  Server server;
  RawHttp client(server.port());
  client.send(get_request("/events"));
  client.read_until("\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return !server.is_busy(); }));
  server.tell(std::string(kBigBytes, 'x'));
  server.end("data: last\n\n");
  const std::string text = client.read_all();
  EXPECT_TRUE(client.was_closed());
  EXPECT_EQ(text.size(), kBigBytes + 12);
  EXPECT_TRUE(text.ends_with("xdata: last\n\n"));
}

TEST(HttpServer, NoticesABrowserThatGoesAway) {
  Server server;
  {
    RawHttp client(server.port());
    client.send(get_request("/events"));
    client.read_until("\r\n\r\n");
    EXPECT_TRUE(server.has_client());
  }
  EXPECT_TRUE(eventually([&] { return !server.has_client(); }));
}

TEST(HttpServer, DropsAStreamThatIsNotRead) {
  Server server({.write = 50ms});
  RawHttp client(server.port());
  client.send(get_request("/events"));
  client.read_until("\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return !server.is_busy(); }));
  server.tell(std::string(kBigBytes, 'x'));
  EXPECT_TRUE(server.is_busy());
  EXPECT_TRUE(eventually([&] { return !server.has_client(); }));
}

TEST(HttpServer, AQuietStreamIsNoIdleConnection) {
  Server server({.request = 50ms, .idle = 50ms, .write = 50ms});
  RawHttp client(server.port());
  client.send(get_request("/events"));
  client.read_until("\r\n\r\n");
  RawHttp other(server.port());  // whose end shows that the time has passed
  other.read_all();
  ASSERT_TRUE(server.has_client());
  server.tell("data: 1\n\n");
  EXPECT_EQ(client.read_until("\n\n"), "data: 1\n\n");
}

TEST(HttpServer, TellsTheFirstStreamTooManyToComeBackLater) {
  Server server({.streams = 2});
  RawHttp first(server.port());
  RawHttp second(server.port());
  for (RawHttp* client : {&first, &second}) {
    client->send(get_request("/events"));
    EXPECT_THAT(client->read_until("\r\n\r\n"), HasSubstr("200 OK"));
  }
  RawHttp third(server.port());
  third.send(get_request("/events"));
  EXPECT_THAT(third.read_reply(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: ")));
}

TEST(HttpServer, APortThatIsTakenIsAnError) {
  Server server;
  boost::asio::io_context io;
  const auto second = HttpServer::start(io, {"127.0.0.1", server.port()}, [](const auto&) {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kAddressInUse);
  EXPECT_THAT(second.error().to_string(), HasSubstr(std::to_string(server.port())));
}

}  // namespace
}  // namespace ddprun::agent
