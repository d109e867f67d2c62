// Package all registers every driver of this module. It is for commands that
// must speak to any backend; a program imports just the drivers it needs.
package all

import (
	_ "github.com/lockkit/lock/drivers/memory"
	_ "github.com/lockkit/lock/etcdlease"
	_ "github.com/lockkit/lock/pglock"
	_ "github.com/lockkit/lock/redisnode"
	_ "github.com/lockkit/lock/redlock"
	_ "github.com/lockkit/lock/zkelection"
)
