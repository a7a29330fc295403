//go:build !linux

package tcpstore

// Only Linux has an epoll: elsewhere requests are performed in any order.
type arrivals struct{}
type arrival struct{}

func newArrivals() *arrivals                          { return &arrivals{} }
func (*arrivals) close()                              {}
func (*arrivals) join(*conn)                          {}
func (*arrivals) part(*conn)                          {}
func (*arrivals) read(c *conn, b []byte) (int, error) { return c.nc.Read(b) }
func (*arrivals) rejoin(*conn)                        {}
func (*arrivals) leave(*conn, bool)                   {}
