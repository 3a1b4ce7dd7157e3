const http = require('node:http');
const server = http.createServer((_, answer) => answer.end('it works\n'));
server.listen(process.env.PORT);
process.on('SIGTERM', () => server.close(() => process.exit(0)));
