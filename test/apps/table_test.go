package apps

// app is an application: the folder of testdata with its name, and its own client. VIP stands for
// its address, DIR for its folder and PREPARED for that of test/apps/prepare.
type app struct {
	service     string
	needs       []string // programs of this machine
	prepared    string   // what it needs of test/apps/prepare
	put         []string // stores a word, or is not there
	get, want   string   // a line of a shell, and what it prints
	forgets     bool     // its data are gone after a restart
	port        string   // of HTTP, under load through the rollout
	extraImages []string
}

var apps = map[string]app{
	"nginx": {service: "web", needs: []string{"nginx"}, port: "80",
		get: "curl -sSm 5 http://VIP/", want: "it works"},
	"haproxy": {service: "haproxy", needs: []string{"haproxy"}, port: "80", extraImages: []string{"web.yaml"},
		get: "curl -sSm 5 http://VIP/", want: "it works"},
	"node": {service: "backend", needs: []string{"node"}, port: "8000",
		get: "curl -sSm 5 http://VIP:8000/", want: "it works"},
	"redis": {service: "cache", needs: []string{"redis-server"},
		put: []string{"redis-cli -h VIP -a eYVX7EwVmmxKPCDmwMtyKVge8oLd2t81 --no-auth-warning set word aspen",
			"OK"},
		get:  "redis-cli -h VIP -a eYVX7EwVmmxKPCDmwMtyKVge8oLd2t81 --no-auth-warning get word",
		want: "aspen"},
	"postgresql": {service: "db", needs: []string{"/usr/lib/postgresql/15/bin/postgres", "psql"},
		put: []string{"PGPASSWORD=example psql -qAth VIP -U postgres -c " +
			"\"create table words (word text)\" -c \"insert into words values ('aspen') returning word\"", "aspen"},
		get: "PGPASSWORD=example psql -qAth VIP -U postgres -c 'select word from words'", want: "aspen"},
	"mariadb": {service: "db", needs: []string{"mariadbd", "mariadb"},
		put: []string{"mariadb -h VIP -u root -pexample -N -e \"create database d; create table d.words " +
			"(word text); insert into d.words values ('aspen'); select 'stored'\"", "stored"},
		get: "mariadb -h VIP -u root -pexample -N -e 'select word from d.words'", want: "aspen"},
	"rabbitmq": {service: "rabbitmq", needs: []string{"rabbitmqctl"},
		put: []string{"/usr/bin/python3 DIR/publish.py VIP put", "stored"},
		get: "/usr/bin/python3 DIR/publish.py VIP get", want: "aspen"},
	"memcached": {service: "memcached", needs: []string{"memcached"}, forgets: true,
		put: []string{`exec 3<>/dev/tcp/VIP/11211; printf 'set word 0 0 5\r\naspen\r\n' >&3; head -1 <&3`,
			"STORED"},
		get:  `exec 3<>/dev/tcp/VIP/11211; printf 'get word\r\n' >&3; head -2 <&3 | tail -1`,
		want: "aspen"},
	"prometheus": {service: "prometheus", needs: []string{"prometheus"},
		get:  "curl -sSm 5 'http://VIP:9090/api/v1/query?query=up' | grep -o '\"1\"'",
		want: `"1"`},
	"php": {service: "php-apache", needs: []string{"php"},
		put: []string{"echo aspen > DIR/word; curl -sSm 5 -F word=@DIR/word http://VIP/", "stored"},
		get: "curl -sSm 5 http://VIP/", want: "aspen"},
	"python": {service: "web", needs: []string{"/usr/bin/python3"},
		put: []string{"curl -sSm 5 -d aspen http://VIP:8000/", "stored"},
		get: "curl -sSm 5 http://VIP:8000/", want: "aspen"},
	"mosquitto": {service: "mosquitto", needs: []string{"mosquitto", "mosquitto_sub"},
		put: []string{"mosquitto_pub -h VIP -q 1 -r -t word -m aspen && echo stored", "stored"},
		get: "mosquitto_sub -h VIP -t word -C 1 -W 5", want: "aspen"},
	"coredns": {service: "coredns", prepared: "bin/coredns",
		get: "/usr/bin/python3 DIR/ask.py VIP", want: "aspen"},
	"nodered": {service: "node-red", needs: []string{"node"}, prepared: "nodered/done",
		put: []string{"node DIR/talk.js PREPARED VIP put", "stored"},
		get: "node DIR/talk.js PREPARED VIP get", want: "aspen"},
	"wordpress": {service: "wordpress", needs: []string{"php", "mariadbd"},
		prepared: "wordpress/done", extraImages: []string{"db.yaml"},
		put: []string{"/usr/bin/python3 DIR/upload.py VIP put", "stored"},
		get: "/usr/bin/python3 DIR/upload.py VIP get", want: "aspen"},
	"celery": {service: "flower", needs: []string{"redis-server"}, prepared: "celery/done",
		extraImages: []string{"redis.yaml"}, forgets: true,
		put: []string{"/usr/bin/python3 DIR/ask.py VIP put", "42"},
		get: "/usr/bin/python3 DIR/ask.py VIP get", want: "aspen"},
	"monitoring": {service: "prometheus",
		needs:       []string{"prometheus", "prometheus-alertmanager", "prometheus-node-exporter"},
		extraImages: []string{"alertmanager.yaml", "node-exporter.yaml"},
		get: "curl -sSm 5 http://VIP:9090/api/v1/query?query=ALERTS | grep -o aspen && " +
			"curl -sSm 5 http://VIP:9090/api/v1/alertmanagers | grep -o 9093", want: "aspen\n9093"},
	"miniflux": {service: "miniflux", needs: []string{"/usr/lib/postgresql/15/bin/postgres"},
		prepared: "bin/miniflux.app", extraImages: []string{"db.yaml"},
		put: []string{"curl -sSm 5 -u admin:test123 -d '{\"title\": \"aspen\"}' http://VIP:8080/v1/categories " +
			"| grep -o aspen", "aspen"},
		get: "curl -sSm 5 -u admin:test123 http://VIP:8080/v1/categories | grep -o aspen", want: "aspen"},
}
