// Asio, compiled here once instead of in every source that includes it.
#include <boost/asio/impl/src.hpp>
