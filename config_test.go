package lock_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers/memory"
)

func TestOpenRefusesBadInput(t *testing.T) {
	bad := []struct{ url, key string }{
		{"", "url"},
		{"mem", "url"},
		{"meem://", "scheme"},
		{"zk://127.0.0.1", "scheme"}, // its driver is not imported here
		{"mem://?lock_tll=5s", "lock_tll"},
		{"mem://?lock_ttl=5s&lock_ttl=6s", "lock_ttl"},
		{"mem://?lock_ttl=5", "lock_ttl"},
		{"mem://?lock_ttl=-5s", "lock_ttl"},
		{"mem://?lock_ttl=10000h", "lock_ttl"},
		{"mem://?lock_need=safety", "lock_need"},
		{"mem://?lock_token_base=-1", "lock_token_base"},
		{"mem://?lock_poll=often", "lock_poll"},
		{"mem://?lock_note=%00", "lock_note"},
		{"mem://?db=1", "db"},
		{"mem://a,b", "host"},
		{"mem://#x", "url"},
	}
	for _, c := range bad {
		_, err := lock.Open(t.Context(), c.url)
		var config *lock.ConfigError
		if !errors.As(err, &config) {
			t.Errorf("%q: got %v, want a *ConfigError", c.url, err)
		} else if config.Key != c.key || config.Fix == "" {
			t.Errorf("%q: the error names the key %q and the mend %q, want the key %q", c.url, config.Key, config.Fix, c.key)
		}
	}
}

func TestAMisspeltKeyIsGuessed(t *testing.T) {
	_, err := lock.Open(t.Context(), "mem://?lock_tll=5s")
	if err == nil || !strings.Contains(err.Error(), "did you mean lock_ttl?") {
		t.Errorf("got %v", err)
	}
}

func TestOpenShowsNoPassword(t *testing.T) {
	for _, url := range []string{
		"meem://user:s3cret@host",
		"mem://user:s3cret@host",
		"mem://user:s3%63ret@host?lock_tll=1s",
		"mem://:s3cret@host:badport",
		"mem://:x/s3cret@host",
		"mem://:x?s3cret@host",
		"mem://:x#s3cret@host",
		"mem://:x,s3cret@host",
		"mem://:s3cret%zz@host",
	} {
		_, err := lock.Open(t.Context(), url)
		if err == nil {
			t.Errorf("%q was accepted", url)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the password is in %q", err)
		}
	}
}

func TestOpenRefusesAPromiseThatIsNotMade(t *testing.T) {
	_, err := lock.Open(t.Context(), "mem://unmet", lock.Correctness)
	var unmet *lock.UnmetError
	if !errors.As(err, &unmet) || unmet.Want != lock.Correctness || len(unmet.Why) != 1 {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), "durable") || strings.Contains(err.Error(), "does not promise fencing") {
		t.Errorf("%q does not tell what is missing", err)
	}
	if _, err := lock.Open(t.Context(), "mem://unmet?lock_need=correctness"); !errors.As(err, &unmet) {
		t.Errorf("lock_need: got %v", err)
	}
	b, err := lock.Open(t.Context(), "mem://met?lock_durable=true", lock.Correctness)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestConfigIsReadFromJSON(t *testing.T) {
	var c lock.Config
	text := `{"url":"mem://json?lock_ttl=1s","need":"fencing,prompt","ttl":"20s","token_base":5}`
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	b, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	l, err := b.Lock("job", nil).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(l.Deadline()); left < 10*time.Second {
		t.Errorf("%v left: the URL's TTL overruled the field's", left)
	}
	out, err := json.Marshal(c)
	if err != nil || !strings.Contains(string(out), `"need":"fencing,prompt","ttl":"20s"`) {
		t.Errorf("written as %s, %v", out, err)
	}
}

func TestConfigRefusesBadText(t *testing.T) {
	for _, text := range []string{`{"need":"luck"}`, `{"ttl":"soon"}`} {
		var c lock.Config
		if err := json.Unmarshal([]byte(text), &c); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}

func TestNewRefusesBadOptions(t *testing.T) {
	for key, opts := range map[string]*lock.Options{
		"lock_ttl":        {TTL: -1},
		"lock_poll":       {Poll: 1},
		"lock_token_base": {TokenBase: -1},
		"lock_note":       {Note: strings.Repeat("x", 257)},
	} {
		_, err := lock.New(memory.New(memory.NewStore(), nil), opts)
		var config *lock.ConfigError
		if !errors.As(err, &config) || config.Key != key {
			t.Errorf("%s: got %v", key, err)
		}
	}
}

func TestCheckReportsEveryPromise(t *testing.T) {
	b, err := lock.New(plain{memory.New(memory.NewStore(), nil)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r, err := b.Check(t.Context())
	if err != nil || len(r.Promises) != 4 {
		t.Fatalf("got %+v, %v", r, err)
	}
	for _, p := range r.Promises {
		if !p.Made && p.Why == "" {
			t.Errorf("%v is not made and nobody knows why", p.Guarantee)
		}
	}
}

func TestNewRefusesNoDriver(t *testing.T) {
	_, err := lock.New(nil, nil)
	var config *lock.ConfigError
	if !errors.As(err, &config) {
		t.Errorf("got %v", err)
	}
}
