package zkelection_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/zkelection"
)

func TestTTLIsTheSessionsTimeout(t *testing.T) {
	t.Parallel()
	addr := zookeeper(t)[0]
	for _, c := range []struct{ asked, got time.Duration }{
		{ttl, ttl},
		{time.Second + 1, time.Second + time.Millisecond},
		{time.Millisecond, 400 * time.Millisecond}, // two ticks are the least that the server gives
	} {
		d, err := tryOpen(t, "zk://"+addr+"?lock_prefix="+prefix(t), c.asked)
		must(t, err)
		r := request("name")
		r.TTL = c.asked
		g, err := d.TryAcquire(within(t), r)
		if err != nil || g.TTL != c.got || g.Margin != c.got/4 {
			t.Errorf("asked for %v: TTL %v, margin %v: %v", c.asked, g.TTL, g.Margin, err)
		}
		if kept, err := d.Renew(within(t), g); err != nil || kept != c.got {
			t.Errorf("renewed for %v: %v", kept, err)
		}
		for _, bad := range []time.Duration{c.got + 1, 0, -1} {
			r = request("other")
			r.TTL = bad
			_, err = d.TryAcquire(within(t), r)
			mustConfig(t, err, "lock_ttl")
		}
		d.Close()
	}
}

func TestTTLThatTheServerWouldShortenIsRefused(t *testing.T) {
	for _, c := range []time.Duration{ttl + time.Millisecond, 60 * 24 * time.Hour} {
		_, err := tryOpen(t, "zk://"+zookeeper(t)[0], c)
		config := mustConfig(t, err, "lock_ttl")
		if c < time.Minute && !strings.Contains(config.Fix, ttl.String()) {
			t.Errorf("%v does not tell the most that the server gives", err)
		}
	}
}

func TestSettingsAreCheckedBeforeAnythingIsSent(t *testing.T) {
	nobody := "zk://127.0.0.1:1" // an error of reaching it would not be a *ConfigError
	for raw, key := range map[string]string{
		nobody + "?lock_perfix=x":              "lock_perfix",
		nobody + "?lock_prefix=":               "lock_prefix",
		nobody + "?lock_prefix=a/../b":         "lock_prefix",
		nobody + "?lock_prefix=a%2f%2fb":       "lock_prefix",
		nobody + "?lock_prefix=a%00":           "lock_prefix",
		nobody + "/a/./b":                      "chroot",
		"zk://":                                "url",
		"zk://user@127.0.0.1:1":                "user",
		"zk://:secret@127.0.0.1:1":             "user",
		"zk://a%3Ab:secret@127.0.0.1:1":        "user",
		"zk://a:secret@127.0.0.1:1,b:secret@h": "user",
	} {
		_, err := tryOpen(t, raw, ttl)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", raw, err)
		}
		mustConfig(t, err, key)
	}
}

func TestChrootAndPrefixGoBeforeAllPaths(t *testing.T) {
	conn := eye(t)
	d := openURL(t, "zk://"+zookeeper(t)[0]+"/"+prefix(t)+"/app/?lock_prefix=a/b")
	acquire(t, d, "name")
	list, _, err := conn.Children("/" + prefix(t) + "/app/a/b/name")
	if err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// fake answers each connection and closes it.
func fake(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				answer(c)
				c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func TestServerThatCannotServeIsFoundAtOpen(t *testing.T) {
	t.Parallel()
	closes := fake(t, func(net.Conn) {})
	silent := fake(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	nobody := l.Addr().String()
	l.Close()
	for _, addr := range []string{nobody, closes, silent} {
		began := time.Now()
		_, err := tryOpen(t, "zk://user:s%65cret@"+addr, ttl)
		mustBe(t, err, drivers.ErrUnavailable)
		if took := time.Since(began); took > patience/2 {
			t.Errorf("it took %v", took)
		}
		if !strings.Contains(err.Error(), addr) || strings.Contains(err.Error(), "cret") {
			t.Error(err)
		}
	}
}

func TestOpeningEndsWithItsContext(t *testing.T) {
	silent := fake(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	u, err := drivers.ParseURL("zk://" + silent)
	must(t, err)
	ctx, cancel := context.WithTimeout(within(t), 20*time.Millisecond)
	defer cancel()
	_, err = drivers.Open(ctx, u)
	mustBe(t, err, context.DeadlineExceeded)
}

func TestOtherProductsAreRecognised(t *testing.T) {
	for _, greeting := range []string{"-ERR unknown command\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"} {
		addr := fake(t, func(c net.Conn) { _, _ = c.Write([]byte(greeting)) })
		_, err := tryOpen(t, "zk://"+addr, ttl)
		if config := mustConfig(t, err, "host"); !strings.Contains(config.Value, addr) {
			t.Errorf("%v does not name %s", err, addr)
		}
	}
}

func TestOneServerOfTheListSuffices(t *testing.T) {
	t.Parallel()
	silent := fake(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	closes := fake(t, func(net.Conn) {})
	d := openURL(t, "zk://"+closes+","+silent+","+zookeeper(t)[0]+"?lock_prefix="+prefix(t))
	acquire(t, d, "name")
}

func TestNodesOfAUserAreTheUsersAlone(t *testing.T) {
	t.Parallel()
	at := zookeeper(t)[0] + "?lock_prefix=" + prefix(t)
	owner := openURL(t, "zk://ann:s%65cret%3F@"+at)
	g := acquire(t, owner, "name")
	again := openURL(t, "zk://ann:s%65cret%3F@"+at)
	_, err := again.TryAcquire(within(t), request("name"))
	mustBe(t, err, drivers.ErrHeld)
	for _, raw := range []string{"zk://bob:s%65cret%3F@" + at, "zk://ann:s%65cret@" + at, "zk://" + at} {
		_, err := tryOpen(t, raw, ttl)
		if mustConfig(t, err, "user"); strings.Contains(err.Error(), "cret") {
			t.Error(err)
		}
	}
	acl, _, err := connectAs(t, "ann:secret?").GetACL(nodeOf(t, connectAs(t, "ann:secret?"), g))
	if err != nil || len(acl) != 1 || acl[0].Scheme != "digest" || !strings.HasPrefix(acl[0].ID, "ann:") {
		t.Errorf("%+v, %v", acl, err)
	}
}

func connectAs(t *testing.T, digest string) *zk.Conn {
	t.Helper()
	conn := eye(t)
	must(t, conn.AddAuth("digest", []byte(digest)))
	return conn
}

func TestUserWhoMayNotTouchANodeIsTold(t *testing.T) {
	conn, d := connectAs(t, "ann:secret"), open(t, "")
	release(t, d, acquire(t, d, "free"))
	if _, err := conn.Create(parent(t, "name"), nil, 0, zk.AuthACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	for _, try := range []func(context.Context, drivers.Request) (drivers.Grant, error){d.TryAcquire, d.Acquire} {
		_, err := try(within(t), request("name"))
		mustConfig(t, err, "user")
	}
}

func TestConstructorRefusesWhatBreaksTheRules(t *testing.T) {
	addrs := zookeeper(t)
	mine, other := zkelection.NewDialer(nil), zkelection.NewDialer(nil)
	conn := connect(t, addrs, mine, time.Second)
	for _, c := range []struct {
		conn   *zk.Conn
		dialer *zkelection.Dialer
		opts   zkelection.Options
		key    string
	}{
		{nil, mine, zkelection.Options{}, "dialer"},
		{conn, nil, zkelection.Options{}, "dialer"},
		{conn, other, zkelection.Options{}, "dialer"},
		{conn, mine, zkelection.Options{TTL: time.Second + 1}, "lock_ttl"},
		{conn, mine, zkelection.Options{Prefix: "a//b"}, "lock_prefix"},
		{conn, mine, zkelection.Options{Chroot: ".."}, "chroot"},
	} {
		_, err := zkelection.New(within(t), c.conn, c.dialer, &c.opts)
		mustConfig(t, err, c.key)
	}
	d, err := zkelection.New(within(t), conn, mine, nil)
	must(t, err)
	d.Close()
}

func TestCallersConnectionThatDoesNotAnswerIsFound(t *testing.T) {
	t.Parallel()
	silent := fake(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	dialer := zkelection.NewDialer(nil)
	conn := connect(t, []string{silent}, dialer, ttl)
	ctx, cancel := context.WithTimeout(within(t), 20*time.Millisecond)
	defer cancel()
	_, err := zkelection.New(ctx, conn, dialer, nil)
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, drivers.ErrUnavailable) {
		t.Error(err)
	}
}
