package servers

// OnlyTheReaper switches off what the kernel does when this process ends.
func OnlyTheReaper() { kernelKills = false }
