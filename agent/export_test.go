package agent

// SetKernelLog gives an agent another kernel's log.
func SetKernelLog(c *Config, read func(each func(record string))) { c.kernelLog = read }
