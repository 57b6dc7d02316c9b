// Asio's part for TLS, as rendezvous/net/asio.cpp has the rest.
#include <boost/asio/ssl/impl/src.hpp>
