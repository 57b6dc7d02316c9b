// Asio's TLS part, compiled here once; rendezvous/net/asio.cpp has the rest.
#include <boost/asio/ssl/impl/src.hpp>
