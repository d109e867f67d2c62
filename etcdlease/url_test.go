package etcdlease_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/etcdlease"
)

func TestASettingThatCannotServeIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	nobody := unused(t)
	for raw, key := range map[string]string{
		"etcd://":                                      "host",
		"etcd://" + nobody + "/db":                     "path",
		"etcd://" + nobody + "?lock_prefix=":           "lock_prefix",
		"etcd://" + nobody + "?lock_prefix=a%20b":      "lock_prefix",
		"etcd://" + nobody + "?lock_prefix=locks/":     "lock_prefix",
		"etcd://" + nobody + "?dial_timeout=soon":      "dial_timeout",
		"etcd://" + nobody + "?dial_timeuot=1s":        "dial_timeuot",
		"etcd://" + nobody + "," + nobody:              "host",
		"etcd://u:p@" + nobody + ",v:p@127.0.0.2:2379": "user",
		"etcd://u@" + nobody:                           "user",
		"etcd://:p@" + nobody:                          "user",
	} {
		_, err := tryOpen(t.Context(), raw)
		var config *drivers.ConfigError
		if !errors.As(err, &config) || config.Key != key || config.Fix == "" {
			t.Errorf("%s: got %v, want a fault of %s", raw, err, key)
		}
	}
}

// unused is an address on which nobody listens.
func unused(t *testing.T) string {
	l := listener(t, nil)
	_ = l.Close()
	return l.Addr().String()
}

// listener is a server that is not an etcd: it hands its connections to serve.
func listener(t *testing.T, serve func(net.Conn)) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); serve(conn) }()
		}
	}()
	return l
}

func mute(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func asRedis(conn net.Conn) {
	_, _ = conn.Write([]byte("-ERR unknown command 'PRI'\r\n"))
	mute(conn)
}

// overTLS has a certificate that nobody trusts.
func overTLS(t *testing.T) func(net.Conn) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2"}}
	return func(conn net.Conn) { mute(tls.Server(conn, config)) }
}

// A password that looks different in a URL, and must show in neither form.
const password = "p@ss/w%rd?"

func assertNoPassword(t *testing.T, err error) {
	t.Helper()
	for _, secret := range []string{password, url.QueryEscape(password), url.PathEscape(password), url.UserPassword("u", password).String()} {
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the password is in %q", err)
		}
	}
}

func TestAServerThatIsNoEtcdIsNamedWithTheMend(t *testing.T) {
	t.Parallel()
	plain := etcd(t).Addrs()[0]
	secure := listener(t, overTLS(t)).Addr().String()
	redis := listener(t, asRedis).Addr().String()
	silent := listener(t, mute).Addr().String()
	nobody := unused(t)
	for _, c := range []struct {
		scheme, addr, key string // an empty key is a server that may come back
	}{
		{"etcd", nobody, ""},
		{"etcds", nobody, ""},
		{"etcd", silent, ""},
		{"etcds", silent, ""},
		{"etcd", redis, "host"},
		{"etcd", secure, "host"},
		{"etcds", secure, "host"},
		{"etcds", plain, "scheme"},
	} {
		for _, user := range []string{"", url.UserPassword("u", password).String() + "@"} {
			began := time.Now()
			bound := "?dial_timeout=5s"
			if c.addr == silent {
				bound = "?dial_timeout=300ms"
			}
			_, err := tryOpen(t.Context(), c.scheme+"://"+user+c.addr+bound)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s://%s took %v", c.scheme, c.addr, took)
			}
			var config *drivers.ConfigError
			switch {
			case err == nil || !strings.Contains(err.Error(), c.addr):
				t.Errorf("%s://%s: got %v, want an error with the address", c.scheme, c.addr, err)
			case c.key == "" && (!errors.Is(err, drivers.ErrUnavailable) || errors.As(err, &config)):
				t.Errorf("%s://%s: got %v, want ErrUnavailable", c.scheme, c.addr, err)
			case c.key != "" && (!errors.As(err, &config) || config.Key != c.key || config.Fix == ""):
				t.Errorf("%s://%s: got %v, want a fault of %s", c.scheme, c.addr, err, c.key)
			}
			assertNoPassword(t, err)
		}
	}
}

func TestOpeningEndsWithItsContext(t *testing.T) {
	t.Parallel()
	silent := listener(t, mute).Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	_, err := tryOpen(ctx, "etcd://"+silent+"?dial_timeout=1m")
	want(t, err, context.Canceled)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestOneMemberThatAnswersIsEnough(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	silent := listener(t, mute).Addr().String()
	d := open(t, "etcd://"+strings.Join([]string{unused(t), silent, c.Addrs()[0]}, ","))
	release(t, d, take(t, d, request(rand.Text(), time.Minute)))
}

// userAndRole makes etcd ask for passwords.
func userAndRole(t *testing.T, client *clientv3.Client, prefix string) {
	t.Helper()
	ctx := t.Context()
	end := clientv3.GetPrefixRangeEnd(prefix)
	steps := []func() error{
		func() error { _, err := client.RoleAdd(ctx, "root"); return err },
		func() error { _, err := client.UserAdd(ctx, "root", "r"); return err },
		func() error { _, err := client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := client.RoleAdd(ctx, "locks"); return err },
		func() error {
			_, err := client.RoleGrantPermission(ctx, "locks", prefix, end, clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := client.UserAdd(ctx, "u", password); return err },
		func() error { _, err := client.UserGrantRole(ctx, "u", "locks"); return err },
		func() error { _, err := client.AuthEnable(ctx); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUsersArePermittedByTheirRoleOnly(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{})
	client := admin(t, c)
	if _, err := client.UserGet(t.Context(), "nobody"); err == nil {
		t.Skip("there are users already")
	}
	userAndRole(t, client, "lock/")
	addr := c.Addrs()[0]
	user := url.UserPassword("u", password).String() + "@"
	for raw, key := range map[string]string{
		"etcd://" + addr: "user",
		"etcd://" + user + addr + "?lock_prefix=other":                    "user",
		"etcd://" + url.UserPassword("u", "x").String() + "@" + addr:      "password",
		"etcd://" + url.UserPassword("x", password).String() + "@" + addr: "password",
	} {
		_, err := tryOpen(t.Context(), raw)
		var config *drivers.ConfigError
		if !errors.As(err, &config) || config.Key != key || config.Fix == "" || !strings.Contains(err.Error(), addr) {
			t.Errorf("got %v, want a fault of %s", err, key)
		}
		assertNoPassword(t, err)
	}

	d := open(t, "etcd://"+user+addr)
	g := take(t, d, request(rand.Text(), time.Minute))
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Inspect(t.Context(), g.Name); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() {
		g, err := d.Acquire(t.Context(), withoutPoll(g.Name))
		if err == nil {
			err = d.Release(t.Context(), g)
		}
		waited <- err
	}()
	_, err := d.TryAcquire(t.Context(), request(g.Name, time.Minute))
	want(t, err, drivers.ErrHeld)
	release(t, d, g)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if _, err := d.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestNewRefusesAClientThatCannotWork(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	closed := admin(t, c)
	_ = closed.Close()
	for what, client := range map[string]*clientv3.Client{
		"nil": nil, "no connection": clientv3.NewCtxClient(t.Context()), "closed": closed,
	} {
		_, err := etcdlease.New(t.Context(), client, nil)
		var config *drivers.ConfigError
		if !errors.As(err, &config) || config.Fix == "" {
			t.Errorf("%s: got %v", what, err)
		}
	}
	_, err := etcdlease.New(t.Context(), admin(t, c), &etcdlease.Options{Prefix: "a b"})
	var config *drivers.ConfigError
	if !errors.As(err, &config) || config.Key != "lock_prefix" {
		t.Errorf("got %v", err)
	}
}

func TestNewFindsThatNobodyAnswers(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{unused(t)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = etcdlease.New(ctx, client, nil)
	want(t, err, drivers.ErrUnavailable)
}

func TestCloseLeavesTheCallersClientOpen(t *testing.T) {
	t.Parallel()
	client := admin(t, etcd(t))
	d, err := etcdlease.New(t.Context(), client, &etcdlease.Options{Prefix: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	release(t, d, take(t, d, request(rand.Text(), time.Minute)))
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Get(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
}
