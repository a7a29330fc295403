package launch

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Source: LocalElasticAgent._set_local_rank_env.
func TestVirtualLocalRankEnv(t *testing.T) {
	type env = map[string]string
	tests := []struct {
		name string
		env  env
		rank int
		want env
		err  string
	}{
		{"nothing set", env{}, 3, env{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "3"}, ""},
		{"list", env{"CUDA_VISIBLE_DEVICES": "4, 5 ,6"}, 1, env{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "5"}, ""},
		{"uuids", env{"CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b"}, 1, env{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "MIG-b"}, ""},
		{"hip first", env{"HIP_VISIBLE_DEVICES": "7,8", "CUDA_VISIBLE_DEVICES": "1"}, 1,
			env{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "8", "HIP_VISIBLE_DEVICES": "8"}, ""},
		{"hip empty", env{"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1,2"}, 1, env{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "2"}, ""},
		{"empty is one element", env{"CUDA_VISIBLE_DEVICES": ""}, 0, env{"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}, ""},
		{"too few", env{"CUDA_VISIBLE_DEVICES": "3"}, 1, nil, "local rank 1 has no device: CUDA_VISIBLE_DEVICES=3"},
		{"too few for hip", env{"HIP_VISIBLE_DEVICES": "3"}, 2, nil, "local rank 2 has no device: HIP_VISIBLE_DEVICES=3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := virtualLocalRankEnv(func(name string) (string, bool) { v, ok := tt.env[name]; return v, ok }, tt.rank)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
