export default function MissionPage() { return <p>Soon.</p>; }
