#include "rendezvous/http/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/x509.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/http/tls_context.h"
#include "rendezvous/tls/ca_file.h"
#include "tests/support/http_server.h"
#include "tests/support/job.h"

namespace ddprun::rdzv {
namespace {

using test::Certificates;
using test::HttpServer;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Connection = HttpServer::Connection;

void echo(Connection& client) {
  while (const auto request = client.read()) {
    client.reply(200, request->method + " " + request->target + " " + request->body);
  }
}

Result<HttpReply> ask(boost::asio::io_context& io, HttpClient& client, HttpRequest request) {
  std::optional<Result<HttpReply>> answer;
  client.send(std::move(request), [&](Result<HttpReply> reply) { answer = std::move(reply); });
  io.restart();
  while (!answer && io.run_one_for(20s) > 0) {
  }
  return answer ? *std::move(answer)
                : Result<HttpReply>(fail(ErrorCode::kIo, "the client never said anything"));
}

Result<HttpReply> ask(HttpOptions options, HttpRequest request = {.body = "hello"}) {
  boost::asio::io_context io;
  HttpClient client(io, std::move(options));
  return ask(io, client, std::move(request));
}

TEST(HttpClient, AsksOverOneConnection) {
  HttpServer server(echo);
  boost::asio::io_context io;
  HttpClient client(io, {.server = server.endpoint()});
  for (int i = 0; i < 3; ++i) {
    const auto reply = ask(io, client, {.target = "/a", .body = std::to_string(i)});
    ASSERT_TRUE(reply) << reply.error().to_string();
    EXPECT_EQ(reply->status, 200U);
    EXPECT_EQ(reply->body, "POST /a " + std::to_string(i));
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, AnswersInTheOrderOfTheQuestions) {
  HttpServer server(echo);
  boost::asio::io_context io;
  HttpClient client(io, {.server = server.endpoint()});
  std::vector<std::string> answers;
  for (const char* each : {"1", "2", "3"}) {
    client.send({.method = "PUT", .target = "/", .body = each},
                [&](Result<HttpReply> reply) { answers.push_back(reply.value().body); });
  }
  EXPECT_TRUE(answers.empty());
  io.run();
  EXPECT_THAT(answers, ElementsAre("PUT / 1", "PUT / 2", "PUT / 3"));
}

// The loop stood still while the answer came and its time limit went by: both are ready together.
TEST(HttpClient, AnAnswerThatIsThereAtTheTimeLimitIsTheAnswerOfItsQuestionAlone) {
  std::atomic<int> asked = 0, may_reply = 0, replied = 0;
  HttpServer server([&](Connection& client) {
    while (client.read()) {
      const int question = ++asked;
      while (may_reply < question) std::this_thread::yield();
      client.reply(200, "yes");
      ++replied;
    }
  });
  boost::asio::io_context io;
  HttpClient client(io, {.server = server.endpoint(), .time_limit = 200ms});
  std::vector<int> calls(5);
  for (int& each : calls) {
    const int question = asked + 1;
    const auto began = std::chrono::steady_clock::now();
    client.send({.body = "hello"}, [&each](const Result<HttpReply>&) { ++each; });
    io.restart();
    while (asked < question && each == 0) io.run_one_for(1ms);
    may_reply = question;
    while (replied < question && each == 0) std::this_thread::yield();
    std::this_thread::sleep_until(began + 250ms);
    io.restart();
    io.run_for(100ms);
  }
  may_reply = 100;
  EXPECT_THAT(calls, ElementsAre(1, 1, 1, 1, 1));
}

TEST(HttpClient, SendsHeadersAndTakesAnyStatus) {
  HttpServer server([](Connection& client) {
    const auto request = client.read().value();
    client.reply(403, request.headers.at("authorization") + " " + request.headers.at("host"));
  });
  const auto reply = ask({.server = server.endpoint()}, {.headers = {{"Authorization", "token"}}});
  ASSERT_TRUE(reply) << reply.error().to_string();
  EXPECT_EQ(reply->status, 403U);
  EXPECT_EQ(reply->body, "token " + server.endpoint().to_string());
}

TEST(HttpClient, ConnectsAnewWhenTheServerHasClosed) {
  std::atomic<int> closed = 0;
  HttpServer server([&](Connection& client) {
    if (client.read()) client.reply(200, "once");
    client.close();
    closed += 1;
  });
  boost::asio::io_context io;
  HttpClient client(io, {.server = server.endpoint()});
  for (int i = 1; i <= 3; ++i) {
    const auto reply = ask(io, client, {});
    ASSERT_TRUE(reply) << reply.error().to_string();
    ASSERT_TRUE(test::eventually([&] { return closed == i; }));
  }
  EXPECT_EQ(server.connections(), 3);
}

TEST(HttpClient, GivesUpOnASlowServerInTime) {
  HttpServer server([](Connection& client) {
    client.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhal");
    client.await_end();
  });
  const auto reply = ask({.server = server.endpoint(), .time_limit = 100ms});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(reply.error().message, HasSubstr(" did not answer within 100 ms"));
}

TEST(HttpClient, GoesOnWithTheNextQuestionAfterAFailure) {
  HttpServer server([](Connection& client) {
    while (const auto request = client.read()) {
      if (request->body == "silence") return client.await_end();
      client.reply(200, request->body);
    }
  });
  boost::asio::io_context io;
  HttpClient client(io, {.server = server.endpoint(), .time_limit = 200ms});
  EXPECT_FALSE(ask(io, client, {.body = "silence"}));
  const auto reply = ask(io, client, {.body = "words"});
  ASSERT_TRUE(reply) << reply.error().to_string();
  EXPECT_EQ(reply->body, "words");
}

TEST(HttpClient, RefusesWhatIsTooLarge) {
  HttpServer announced([](Connection& client) {
    client.read();
    client.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n");
    client.await_end();
  });
  HttpServer endless([](Connection& client) {
    client.read();
    client.write("HTTP/1.1 200 OK\r\n\r\n");
    while (client.write(std::string(1000, 'x'))) {
    }
  });
  HttpServer with_endless_head([](Connection& client) {
    client.read();
    client.write("HTTP/1.1 200 OK\r\n");
    while (client.write("X-More: " + std::string(1000, 'x') + "\r\n")) {
    }
  });
  for (const HttpServer* server : {&announced, &endless, &with_endless_head}) {
    const auto reply = ask({.server = server->endpoint(), .max_reply_bytes = 5000});
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, ErrorCode::kResourceExhausted) << reply.error().to_string();
  }
}

TEST(HttpClient, SaysThatItIsNoHttp) {
  HttpServer server([](Connection& client) {
    client.read();
    client.write("SSH-2.0-OpenSSH_9.2p1 Debian\r\n\r\n");
    client.await_end();
  });
  const auto reply = ask({.server = server.endpoint()});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kProtocol) << reply.error().to_string();
  EXPECT_THAT(reply.error().message, HasSubstr("does not speak HTTP"));
}

TEST(HttpClient, SaysThatTheAnswerIsCutOff) {
  for (const std::string part :
       {"", "HTTP/1.1 20", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"}) {
    HttpServer server([&](Connection& client) {
      client.read();
      client.write(part);
    });
    const auto reply = ask({.server = server.endpoint()});
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, ErrorCode::kClosed) << reply.error().to_string();
  }
}

TEST(HttpClient, SaysThatNobodyListens) {
  Endpoint nobody;
  {
    const HttpServer server(echo);
    nobody = server.endpoint();
  }
  const auto reply = ask({.server = nobody});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(reply.error().message, HasSubstr("Connection refused"));
}

TEST(HttpClient, SaysNothingMoreWhenItIsGone) {
  HttpServer server(echo);
  boost::asio::io_context io;
  auto client = std::make_unique<HttpClient>(io, HttpOptions{.server = server.endpoint()});
  bool was_called = false;
  client->send({}, [&](const auto&) { was_called = true; });
  io.run_one();
  client.reset();
  io.run();
  EXPECT_FALSE(was_called);
}

// ---- TLS

class HttpTls : public testing::Test {
 protected:
  std::shared_ptr<TlsContext> context(const TlsFiles& files) {
    auto made = make_tls_context(files);
    EXPECT_TRUE(made) << made.error().to_string();
    return made.value_or(nullptr);
  }
  HttpOptions options(const HttpServer& server, const TlsFiles& files) {
    return {.server = server.endpoint(), .tls = context(files)};
  }

  TemporaryTree folder_;
  const Certificates certificates_{folder_.path()};
};

TEST_F(HttpTls, TrustsTheServerOfItsCa) {
  HttpServer server(echo, &certificates_);
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    HttpOptions tls = options(server, {.ca = certificates_.ca});
    tls.server.host = host;
    const auto reply = ask(tls, {.target = "/x", .body = "y"});
    ASSERT_TRUE(reply) << reply.error().to_string();
    EXPECT_EQ(reply->body, "POST /x y");
  }
}

TEST_F(HttpTls, RefusesTheServerOfAnotherCa) {
  HttpServer server(echo, &certificates_);
  for (const std::string& ca : {certificates_.other_ca, std::string()}) {
    const auto reply = ask(options(server, {.ca = ca}));
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, ErrorCode::kPermissionDenied);
    EXPECT_THAT(reply.error().message, HasSubstr("is not trusted: "));
  }
}

TEST_F(HttpTls, RefusesTheServerOfAnotherName) {
  HttpServer server(echo, &certificates_);
  for (const std::string name : {"etcd.example.org", "127.0.0.2"}) {
    HttpOptions tls = options(server, {.ca = certificates_.ca});
    tls.server_name = name;
    const auto reply = ask(tls);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, ErrorCode::kPermissionDenied);
    EXPECT_THAT(reply.error().message, HasSubstr("it is not for '" + name + "'"));
  }
}

TEST_F(HttpTls, ShowsItsCertificateToWhoAsksForOne) {
  HttpServer server(echo, &certificates_, /*wants_client=*/true);
  EXPECT_TRUE(
      ask(options(server, {certificates_.ca, certificates_.client, certificates_.client_key})));
  const auto reply = ask(options(server, {.ca = certificates_.ca}));
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message, HasSubstr("127.0.0.1"));
}

TEST_F(HttpTls, SaysThatOneSpeaksTlsAndTheOtherDoesNot) {
  HttpServer plain(echo);
  auto reply = ask(options(plain, {.ca = certificates_.ca}));
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message, HasSubstr("TLS"));
  HttpServer tls(echo, &certificates_);
  reply = ask({.server = tls.endpoint()});
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message, HasSubstr("closed the connection"));
}

TEST_F(HttpTls, NamesTheFileThatIsNoGood) {
  const std::string missing = folder_ / "missing.pem";
  const std::string garbage = folder_ / "garbage.pem";
  test::write_file(garbage, "no certificate");
  const auto error_of = [](const TlsFiles& files) {
    return make_tls_context(files).error().message;
  };
  EXPECT_THAT(error_of({.ca = missing}), HasSubstr("the CA file " + missing + ": No such file"));
  EXPECT_THAT(error_of({.ca = garbage}),
              HasSubstr("the CA file " + garbage + " is not a good PEM"));
  EXPECT_THAT(error_of({.certificate = certificates_.client}),
              HasSubstr("needs the file with its key"));
  EXPECT_THAT(error_of({.key = certificates_.client_key}), HasSubstr("its certificate"));
  EXPECT_THAT(error_of({certificates_.ca, certificates_.client, certificates_.server_key}),
              HasSubstr("is not that of the certificate"));
}

TEST(SystemCaFile, IsThatOfTheSystem) {
  for (const char* const name : {"SSL_CERT_FILE", "SSL_CERT_DIR"}) ::unsetenv(name);
  const TemporaryTree root;
  EXPECT_EQ(system_ca_file(root.path()), "") << "there is none";
  for (const std::string file :
       {"/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/certs/ca-certificates.crt"}) {
    std::filesystem::create_directories(std::filesystem::path(root.path() + file).parent_path());
    test::write_file(root.path() + file, "");
    EXPECT_EQ(system_ca_file(root.path()), root.path() + file) << "before those further down";
  }
  ::setenv("SSL_CERT_FILE", "mine.pem", 1);
  EXPECT_EQ(system_ca_file(root.path()), "") << "the user's own";
  ::unsetenv("SSL_CERT_FILE");
  const std::string default_file = root.path() + X509_get_default_cert_file();
  std::filesystem::create_directories(std::filesystem::path(default_file).parent_path());
  test::write_file(default_file, "");
  EXPECT_EQ(system_ca_file(root.path()), "") << "OpenSSL finds it itself";
}

// ---- streams

struct Heard {
  std::optional<unsigned> status;
  std::vector<std::string> lines;
  std::optional<Error> end;
};

HttpStream::Events into(Heard& heard) {
  return {.on_open = [&](unsigned status) { heard.status = status; },
          .on_line = [&](std::string_view line) { heard.lines.emplace_back(line); },
          .on_end = [&](Error error) { heard.end = std::move(error); }};
}

TEST(HttpStream, GivesLinesAsTheyCome) {
  HttpServer server([](Connection& client) {
    client.read();
    client.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n2\r\ntw\r\n");
    client.await_end();
  });
  HttpServer endless_after([](Connection& client) {
    client.read();
    client.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.write("4\r\none\n\r\n2\r\ntw\r\n4\r\no\n\nt\r\n4\r\nhree\r\n0\r\n\r\n");
    client.await_end();
  });
  boost::asio::io_context io;
  Heard first;
  const HttpStream unfinished(io, {.server = server.endpoint()}, {}, into(first));
  Heard second;
  const HttpStream finished(io, {.server = endless_after.endpoint()}, {}, into(second));
  while (first.lines.empty() || !second.end) ASSERT_GT(io.run_one_for(20s), 0U);
  EXPECT_EQ(first.status, 200U);
  EXPECT_THAT(first.lines, ElementsAre("one"));
  EXPECT_FALSE(first.end);
  EXPECT_THAT(second.lines, ElementsAre("one", "two", "three"));
  EXPECT_EQ(second.end->code, ErrorCode::kClosed);
}

TEST(HttpStream, HasNoTimeLimitOnceItIsOpen) {
  HttpServer server([](Connection& client) {
    client.read();
    client.write("HTTP/1.1 200 OK\r\n\r\nfirst\n");
    client.await_end();
  });
  boost::asio::io_context io;
  Heard heard;
  const HttpStream stream(io, {.server = server.endpoint(), .time_limit = 100ms}, {}, into(heard));
  io.run_for(400ms);
  EXPECT_THAT(heard.lines, ElementsAre("first"));
  EXPECT_FALSE(heard.end);
}

TEST(HttpStream, EndsWithWhatIsWrong) {
  const auto end_of = [](HttpServer::Handler handler) {
    HttpServer server(std::move(handler));
    boost::asio::io_context io;
    Heard heard;
    const HttpStream stream(
        io, {.server = server.endpoint(), .time_limit = 200ms, .max_reply_bytes = 100}, {},
        into(heard));
    while (!heard.end && io.run_one_for(20s) > 0) {
    }
    return heard.end.value().code;
  };
  EXPECT_EQ(end_of([](Connection& client) { client.await_end(); }), ErrorCode::kTimeout);
  EXPECT_EQ(end_of([](Connection& client) { client.read(); }), ErrorCode::kClosed);
  EXPECT_EQ(end_of([](Connection& client) {
              client.read();
              client.write("HTTP/1.1 200 OK\r\n\r\n" + std::string(200, 'x'));
              client.await_end();
            }),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(
      end_of([](Connection& client) {
        client.read();
        client.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\nxyz\r\n");
        client.await_end();
      }),
      ErrorCode::kProtocol);
}

TEST(HttpStream, MayEndInItsOwnEvent) {
  HttpServer server([](Connection& client) {
    client.read();
    client.write("HTTP/1.1 200 OK\r\n\r\none\ntwo\nthree\n");
    client.await_end();
  });
  boost::asio::io_context io;
  int lines = 0;
  std::unique_ptr<HttpStream> stream;
  HttpStream::Events events;
  events.on_line = [&](std::string_view) {
    lines += 1;
    stream.reset();
  };
  events.on_end = [](const Error&) { ADD_FAILURE(); };
  stream = std::make_unique<HttpStream>(io, HttpOptions{.server = server.endpoint()}, HttpRequest{},
                                        events);
  while (stream) ASSERT_GT(io.run_one_for(20s), 0U);
  io.run();
  EXPECT_EQ(lines, 1);
}

// ---- addresses

TEST(HttpUrl, IsReadInParts) {
  const auto url = parse_http_url("https://trainer.example:8443/apis/v1?x=1#part").value();
  EXPECT_TRUE(url.is_tls);
  EXPECT_EQ(url.server, (Endpoint{"trainer.example", 8443}));
  EXPECT_EQ(url.target, "/apis/v1?x=1");
  EXPECT_EQ(parse_http_url("http://h").value().server, (Endpoint{"h", 80}));
  EXPECT_EQ(parse_http_url("https://h/").value().server, (Endpoint{"h", 443}));
  EXPECT_EQ(parse_http_url("https://[::1]/").value().server, (Endpoint{"::1", 443}));
  EXPECT_EQ(parse_http_url("http://[::1]:81/").value().server, (Endpoint{"::1", 81}));
}

TEST(HttpUrl, RefusesWhatIsNone) {
  for (const char* text : {"", "h:80", "ftp://h/", "http://", "http:///x", "http://h:0/",
                           "http://h:x/", "http://a b/", "http://u:p@h/", "http://h/\r\nX: y"}) {
    EXPECT_FALSE(parse_http_url(text)) << text;
  }
}

}  // namespace
}  // namespace ddprun::rdzv
