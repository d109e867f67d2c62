package servers

import (
	"context"
	"net"
	"time"
)

// probeLimit bounds one question to a server. A server that boots may accept a connection and never
// answer.
const probeLimit = time.Second

// dialProbe connects for one question. The connection ends with the context, which may be when the
// process has ended. The caller calls hangUp.
func dialProbe(ctx context.Context, addr string) (conn net.Conn, hangUp func(), err error) {
	dialer := net.Dialer{Timeout: probeLimit}
	conn, err = dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	forget := context.AfterFunc(ctx, func() { conn.Close() })
	hangUp = func() {
		forget()
		conn.Close()
	}
	return conn, hangUp, conn.SetDeadline(time.Now().Add(probeLimit))
}
