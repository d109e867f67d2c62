package redisnode

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed renew.lua
	renewSource string
	//go:embed release.lua
	releaseSource string
	//go:embed inspect.lua
	inspectSource string
)

var (
	acquireScript = newScript(acquireSource, 3)
	renewScript   = newScript(renewSource, 1)
	releaseScript = newScript(releaseSource, 2)
	inspectScript = newScript(inspectSource, 1)
)

// A script is run by its digest, in one round trip; a server that does not
// know it yet (new, restarted, flushed) is sent the source. go-redis has the
// same, at the price of five more allocations.
type script struct {
	source, digest, keys any // boxed once
}

func newScript(source string, keys int) script {
	sum := sha1.Sum([]byte(source))
	return script{source: source, digest: hex.EncodeToString(sum[:]), keys: keys}
}

// run sends the script. The first three places of args are its own.
func (s script) run(ctx context.Context, client *redis.Client, args []any) (*redis.Cmd, error) {
	args[0], args[1], args[2] = "evalsha", s.digest, s.keys
	cmd := redis.NewCmd(ctx, args...)
	err := client.Process(ctx, cmd)
	if !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return cmd, err
	}
	args[0], args[1] = "eval", s.source
	cmd = redis.NewCmd(ctx, args...)
	return cmd, client.Process(ctx, cmd)
}
