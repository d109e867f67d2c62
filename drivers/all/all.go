// Package all registers every driver of this module. It is for commands that
// must speak to any backend; a program imports just the drivers it needs.
package all

import (
	_ "github.com/lockkit/lock/drivers/memory"
)
